"""One output of a model as responses write it: constant pieces and JSON values."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from app.codec.bounded_cache import remember
from app.codec.half_floats import BF16, FP16, unpack_bf16
from app.codec.memory_check import ensure_room
from app.codec.messages import NanPolicy
from app.errors import NotRepresentable
from app.spec import TensorSpec
from engine import Tensor

_NUMPY = orjson.OPT_SERIALIZE_NUMPY
# Bytes that writing takes at most for a number, and for a byte of a string: the
# writer's memory grows by doubling.
_NUMBER = 80
_CHARACTER = 18
# For so many numbers there is room in any case.
_FEW = 4096
_WORDS = {
    NanPolicy.LITERAL: (b"NaN", b"Infinity", b"-Infinity"),
    NanPolicy.STRING: (b'"NaN"', b'"Infinity"', b'"-Infinity"'),
}


class Output:
    """Everything that is known of an output before a response is written."""

    __slots__ = (
        "_prefix",
        "_short",
        "data_type",
        "datatype",
        "dtype",
        "heads",
        "kind",
        "name",
    )

    def __init__(self, spec: TensorSpec) -> None:
        datatype = spec.type
        self.name = spec.name
        self.datatype = spec.datatype
        self.data_type = spec.data_type
        self.dtype = datatype.dtype
        self.kind = datatype.kind
        self._short = {"FP16": FP16, "BF16": BF16}.get(datatype.name)
        self._prefix = b'{"name":%b,"datatype":%b,"shape":' % (
            orjson.dumps(spec.name),
            orjson.dumps(spec.datatype),
        )
        #: Those that `head` remembers.
        self.heads: dict[tuple[int, ...], bytes] = {}

    def head(self, shape: tuple[int, ...]) -> bytes:
        """The JSON of an output up to its shape, with the comma behind it."""
        found = self.heads.get(shape)
        if found is None:
            found = self._prefix + orjson.dumps(shape) + b","
            remember(self.heads, shape, found)
        return found

    def array(self, tensor: Tensor) -> npt.NDArray[Any]:
        """The elements, flat, as numpy carries them: a view, if in one part."""
        parts = tensor.parts
        data = parts[0] if len(parts) == 1 else tensor.buffer
        return np.frombuffer(data, self.dtype)

    def json_data(self, tensor: Tensor, nan: NanPolicy) -> bytes:
        """The JSON list of all elements, flat, in the fewest digits that are exact.

        Raises NotRepresentable under the policy that refuses non-finite numbers.
        """
        parts = tensor.parts
        data = parts[0] if len(parts) == 1 else tensor.buffer
        array = np.frombuffer(data, self.dtype)
        if self._short is None:
            if array.size > _FEW:
                ensure_room(_NUMBER * array.size)
            text = orjson.dumps(array, option=_NUMPY)
        else:
            text = self._short.join(array.view(np.uint16).tolist())
        # Only a number that is not finite is written with an "n": as null.
        if self.kind == "f" and text.find(b"n") >= 0 and nan is not NanPolicy.NULL:
            return self._with_words(text, self.values(array), nan)
        return text

    def values(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The numbers of an array as numpy computes with them (BF16 as float32)."""
        return unpack_bf16(array) if self._short is BF16 else array

    def _with_words(
        self, text: bytes, values: npt.NDArray[Any], nan: NanPolicy
    ) -> bytes:
        odd = np.flatnonzero(~np.isfinite(values)).tolist()
        if nan is NanPolicy.REFUSE:
            msg = (
                f"element {odd[0]} of output '{self.name}' is {values[odd[0]]}, which "
                f"JSON cannot write and the request refuses ({len(odd)} such elements)"
            )
            raise NotRepresentable(msg)
        not_a_number, positive, negative = _WORDS[nan]
        items = text[1:-1].split(b",")
        for index in odd:
            value = values[index]
            if value > 0:
                items[index] = positive
            else:
                items[index] = negative if value < 0 else not_a_number
        return b"[" + b",".join(items) + b"]"

    def __repr__(self) -> str:
        return f"<Output {self.name!r} {self.data_type.name}>"


def json_strings(elements: list[bytes]) -> tuple[bytes, bool]:
    """The JSON list of BYTES elements, and whether they had to be written as base64.

    All of them are base64 as soon as one is not UTF-8: the flag is for the tensor.
    """
    try:
        return write_strings([element.decode() for element in elements]), False
    except UnicodeDecodeError:
        encoded = [base64.b64encode(element).decode() for element in elements]
        return write_strings(encoded), True


def write_strings(texts: list[str]) -> bytes:
    """The JSON list of strings."""
    try:
        ensure_room(_CHARACTER * (sum(map(len, texts)) + len(texts)))
    except MemoryError:  # seldom needed that much, and this says so if it cannot do it
        return json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()
    return orjson.dumps(texts)


def strings_of(tensor: Tensor) -> list[bytes]:
    """The elements of a BYTES tensor, flat."""
    elements: list[bytes] = tensor.numpy().reshape(-1).tolist()
    return elements
