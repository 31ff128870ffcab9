"""One output of a model in responses: constant pieces and JSON values."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from app.codec.bounded_cache import remember
from app.codec.half_floats import BF16, FP16, unpack_bf16
from app.codec.memory_check import ensure_room, reserve
from app.codec.messages import NanPolicy
from app.errors import NotRepresentable
from app.give_way import AT_ONCE, BLOCK, empty, give_way
from app.limits import DEFAULT_LIMITS, Limits
from app.spec import TensorSpec
from engine import Tensor
from popef_io import string_blocks

_NUMPY = orjson.OPT_SERIALIZE_NUMPY
# Upper bounds of the bytes that writing takes: for a number, and for each byte of a
# string. The writer's memory grows by doubling.
_NUMBER = 80
_CHARACTER = 18
# Bytes that a string takes as an object before it is written.
_STRING = 120
_LENGTH = struct.Struct("<I")
# An output with more strings than this is always larger than `AT_ONCE`.
_MANY = AT_ONCE // _LENGTH.size
# Memory for this many numbers need not be checked.
_FEW = 4096
_WORDS = {
    NanPolicy.LITERAL: (b"NaN", b"Infinity", b"-Infinity"),
    NanPolicy.STRING: (b'"NaN"', b'"Infinity"', b'"-Infinity"'),
}


class Output:
    """Facts about an output that are known before a response is written."""

    __slots__ = (
        "_prefix",
        "_short",
        "data_type",
        "datatype",
        "dtype",
        "heads",
        "kind",
        "limits",
        "name",
    )

    def __init__(self, spec: TensorSpec, limits: Limits = DEFAULT_LIMITS) -> None:
        datatype = spec.type
        self.limits = limits
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
        #: The heads that `head` has cached, by shape.
        self.heads: dict[tuple[int, ...], bytes] = {}

    def head(self, shape: tuple[int, ...]) -> bytes:
        """Return the JSON of an output up to its shape, with the comma behind it."""
        found = self.heads.get(shape)
        if found is None:
            found = self._prefix + orjson.dumps(shape) + b","
            remember(self.heads, shape, found)
        return found

    def array(self, tensor: Tensor) -> npt.NDArray[Any]:
        """Return the elements, flat, in numpy's form: a view, if in one part."""
        parts = tensor.parts
        data = parts[0] if len(parts) == 1 else tensor.buffer
        return np.frombuffer(data, self.dtype)

    def json_data(self, tensor: Tensor, nan: NanPolicy) -> bytes:
        """Return the JSON list of all elements, flat, in the fewest digits that are
        exact.

        Raises NotRepresentable under the policy that refuses non-finite numbers, and
        for more text than an answer may have.
        """
        parts = tensor.parts
        data = parts[0] if len(parts) == 1 else tensor.buffer
        array = np.frombuffer(data, self.dtype)
        if tensor.nbytes > AT_ONCE:
            return self._long_list(array, nan)
        if self._short is None:
            if array.size > _FEW:
                ensure_room(_NUMBER * array.size)
            text = orjson.dumps(array, option=_NUMPY)
        else:
            text = self._short.join(array.view(np.uint16).tolist())
        # Only a non-finite number is written with an "n": as null.
        if self.kind == "f" and text.find(b"n") >= 0 and nan is not NanPolicy.NULL:
            return self._with_words(text, self.values(array), nan)
        return text

    def _long_list(self, array: npt.NDArray[Any], nan: NanPolicy) -> bytes:
        """Return the JSON like `json_data`, in a thread for large output."""
        pieces = list(self._blocks(array, nan))
        pieces[0] = b"[" + pieces[0]
        pieces[-1] += b"]"
        reserve(sum(map(len, pieces)))
        return b",".join(pieces)

    def _blocks(self, array: npt.NDArray[Any], nan: NanPolicy) -> Iterator[bytes]:
        """Yield the numbers of a large array, written in blocks without brackets."""
        most, values = self.limits.max_json_bytes, self.values
        self.check_text(2 * array.size - 1)
        ensure_room(2 * min(most, _NUMBER * array.size))
        if nan is NanPolicy.REFUSE and self.kind == "f":
            self._with_words(b"", values(array), nan)
        size = -1  # no comma precedes the first number
        for start in range(0, array.size, BLOCK):
            block = array[start : start + BLOCK]
            if self._short is None:
                text = orjson.dumps(block, option=_NUMPY)
            else:
                text = self._short.join(block.view(np.uint16).tolist())
            if self.kind == "f" and b"n" in text and nan is not NanPolicy.NULL:
                text = self._with_words(text, values(block), nan)
            size += len(text) - 1
            self.check_text(size)
            reserve(len(text))
            yield text[1:-1]
            give_way()

    def json_items(self, tensor: Tensor, nan: NanPolicy) -> Iterator[list[bytes]]:
        """Yield the JSON of each number, flat, in blocks if there are many.

        Raises the errors of `json_data`.
        """
        if tensor.nbytes > AT_ONCE:
            for text in self._blocks(self.array(tensor), nan):
                yield text.split(b",")
            return
        text = self.json_data(tensor, nan)[1:-1] if tensor.nbytes else b""
        yield text.split(b",") if text else []

    def check_text(self, size: int) -> None:
        """Refuse to write `size` bytes of text if they reach the limit.

        Raises NotRepresentable.
        """
        most = self.limits.max_json_bytes
        if size > most:
            msg = (
                f"output '{self.name}' would be more than {most} bytes as JSON; "
                "request binary data"
            )
            raise NotRepresentable(msg)

    def strings(self, tensor: Tensor, *, as_text: bool = True) -> list[bytes]:
        """Return the elements of a BYTES tensor, flat, to be written as text or
        unchanged.

        Raises NotRepresentable for more than are written so.
        """
        if tensor.nbytes <= AT_ONCE:
            return strings_of(tensor)
        count, most = math.prod(tensor.shape), self.limits.max_strings
        if as_text:
            self.check_text(tensor.nbytes - _LENGTH.size * count)
        if count > most:
            msg = (
                f"output '{self.name}' has {count} strings, and at most {most} are "
                "written one by one: request binary data"
            )
            raise NotRepresentable(msg)
        return _long_strings(tensor, count)

    def values(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the numbers of an array as numpy computes with them (BF16
        as float32).
        """
        return unpack_bf16(array) if self._short is BF16 else array

    def _with_words(
        self, text: bytes, values: npt.NDArray[Any], nan: NanPolicy
    ) -> bytes:
        odd = np.flatnonzero(~np.isfinite(values)).tolist()
        if nan is NanPolicy.REFUSE:
            msg = (
                f"element {odd[0]} of output '{self.name}' is {values[odd[0]]}, which "
                f"JSON cannot hold and the request refuses ({len(odd)} such elements)"
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
    """Return the JSON list of BYTES elements, and whether they are base64.

    All of them are base64 if one is not UTF-8, because the flag applies to the tensor.
    """
    try:
        texts = texts_of(elements)
        text = write_strings(texts)
        if len(texts) > _MANY:  # so this is no event loop
            empty(texts)
        return text, False
    except UnicodeDecodeError:
        encoded: list[str] = []
        for index, element in enumerate(elements):
            encoded.append(base64.b64encode(element).decode())
            if index % BLOCK == BLOCK - 1 and len(elements) > _MANY:
                give_way()
        return write_strings(encoded), True


def texts_of(elements: list[bytes]) -> list[str]:
    """Return the elements as text. Raises UnicodeDecodeError if one is not UTF-8."""
    if len(elements) <= _MANY:
        return [element.decode() for element in elements]
    texts: list[str] = []
    for start in range(0, len(elements), BLOCK):
        texts += [element.decode() for element in elements[start : start + BLOCK]]
        give_way()
    return texts


def write_strings(texts: list[str]) -> bytes:
    """Return the JSON list of strings."""
    if len(texts) > _MANY:
        pieces = []
        for start in range(0, len(texts), BLOCK):
            piece = write_strings(texts[start : start + BLOCK])[1:-1]
            reserve(2 * len(piece))  # the pieces are joined at the end
            pieces.append(piece)
            give_way()
        pieces[0] = b"[" + pieces[0]
        pieces[-1] += b"]"
        return b",".join(pieces)
    try:
        ensure_room(_CHARACTER * (sum(map(len, texts)) + len(texts)))
    # The writer seldom needs so much. This one reports it if the memory is really
    # missing.
    except MemoryError:
        return json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()
    return orjson.dumps(texts)


def strings_of(tensor: Tensor) -> list[bytes]:
    """Return the elements of a BYTES tensor, flat."""
    elements: list[bytes] = tensor.numpy().reshape(-1).tolist()
    return elements


def _long_strings(tensor: Tensor, count: int) -> list[bytes]:
    """Return the strings like `strings_of`, in a thread for large output."""
    reserve(tensor.nbytes + _STRING * count)
    elements: list[bytes] = []
    for block in string_blocks(tensor.buffer, count):
        elements += block
        give_way()
    return elements
