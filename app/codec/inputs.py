"""One input of a model as requests fill it: shape checks and tensors."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from app.codec.bounded_cache import remember
from app.codec.chunks import gather
from app.codec.elements import Elements, Pack, encode_text, from_base64, packer
from app.codec.memory_check import reserve
from app.codec.number_lists import LongList, NumberList
from app.codec.shapes import (
    Shape,
    completed,
    count_elements,
    deduce,
    discover,
    fits,
    flatten,
    parse_shape,
    shown,
    written,
)
from app.errors import BodyTooLarge, InvalidTensor, larger_than_allowed
from app.give_way import MANY, in_blocks
from app.limits import Limits
from app.sizes import counted
from app.spec import ModelSpec, TensorSpec
from engine import Buffer, Tensor

# Bytes that a string takes as an object before it is packed, besides its own bytes.
_STRING = 120

Accepted = tuple[Shape, int, int, Pack | None]
"""A shape that passed its checks: itself, elements, bytes (-1 for BYTES), how to pack
them.
"""


def _check_bools(name: str, parts: Sequence[Buffer]) -> None:
    """Refuse bytes other than 0 and 1, which compiled kernels do not accept as
    booleans.
    """
    for part in parts:
        array = np.frombuffer(part, np.uint8)
        if array.size and int(array.max()) > 1:
            msg = (
                f"input '{name}' has a byte with value {int(array.max())}; "
                "the model expects BOOL, which is one byte 0 or 1 per element"
            )
            raise InvalidTensor(msg)


class Input:
    """Facts about an input that are known before a request comes.

    Accepted shapes are remembered with their results, so a usual request needs one
    look-up for all checks of its shape.
    """

    __slots__ = (
        "_accepted",
        "_limits",
        "_model",
        "data_type",
        "datatype",
        "elements",
        "item_size",
        "name",
        "shape",
        "spec",
    )

    def __init__(self, model: ModelSpec, spec: TensorSpec, limits: Limits) -> None:
        self.spec = spec
        self.name = spec.name
        self.shape = spec.shape
        self.datatype = spec.datatype
        self.data_type = spec.data_type
        self.item_size = spec.type.item_size
        self.elements = Elements(spec.name, spec.type, limits.max_string_bytes)
        self._model = model
        self._limits = limits
        self._accepted: dict[tuple[int, ...], Accepted] = {}

    def accept(self, shape: object) -> Accepted:
        """Return the shape of a request, checked against the model's.

        Raises InvalidRequest or InvalidTensor.
        """
        if type(shape) is list:
            for dim in shape:
                if type(dim) is not int:  # True and 1.0 are equal to 1 as keys
                    break
            else:
                found = self._accepted.get(tuple(shape))
                if found is not None:
                    return found
        return self.accept_parsed(parse_shape(self.name, shape, self._limits))

    def accept_parsed(self, shape: tuple[int, ...]) -> Accepted:
        """Accept a shape whose dimensions are known to be integers above -1."""
        found = self._accepted.get(shape)
        if found is not None:
            return found
        model = self._model
        if not fits(self.shape, shape):
            msg = (
                f"unexpected shape for input '{self.name}' for model '{model.name}'. "
                f"Expected {written(self.shape)}, got {written(shape)}."
            )
            raise InvalidTensor(msg)
        if model.is_batched and model.max_rows and shape[0] > model.max_rows:
            msg = (
                f"inference request batch-size must be <= {model.max_rows} "
                f"for '{model.name}', got {shape[0]}"
            )
            raise InvalidTensor(msg)
        count = count_elements(self.name, shape, self._limits)
        if not self.item_size and count > self._limits.max_strings:
            msg = (
                f"input '{self.name}' has {counted(count, 'string')}, and at most "
                f"{self._limits.max_strings} are allowed"
            )
            raise InvalidTensor(msg)
        nbytes = count * self.item_size if self.item_size else -1
        accepted = (shape, count, nbytes, packer(self.spec.type, count))
        return remember(self._accepted, shape, accepted)

    def from_values(
        self,
        data: object,
        accepted: Accepted,
        *,
        maybe_bool: bool = True,
        is_base64: bool = False,
        null_is_nan: bool = False,
    ) -> Tensor:
        """Return the tensor of a document's `data`: a flat or nested list, or bytes.

        Raises Unusual if a `NumberList` turns out not to be a list of numbers, and
        BodyTooLarge if the tensor is larger than a body with its bytes may be.
        """
        shape, count, nbytes, pack = accepted
        if nbytes > self._limits.max_body_bytes:
            raise self._too_large(shape, nbytes)
        if type(data) is NumberList:
            packed = data.pack(shape, self.spec.type.struct_code)
            return Tensor(self.data_type, shape, (packed,), len(packed))
        if type(data) is LongList:
            return self._from_long(
                data, accepted, is_base64=is_base64, null_is_nan=null_is_nan
            )
        if type(data) is not list:
            raw = self._raw_of(data, accepted, is_base64=is_base64)
            if raw is not None:
                return self.from_bytes((raw,), len(raw), accepted)
            data = [data]
        if data and type(data[0]) is list:
            data = flatten(self.name, data, shape, self._limits)
        if len(data) != count:
            pack = None  # the code below reports it
        elif count > MANY:
            return self._from_blocks(
                in_blocks(data), shape, is_base64=is_base64, null_is_nan=null_is_nan
            )
        if self.item_size:
            if pack is not None and not (maybe_bool and bool in set(map(type, data))):
                try:
                    packed = pack(*data)
                    return Tensor(self.data_type, shape, (packed,), len(packed))
                except (struct.error, OverflowError):
                    pass  # the code below reports or corrects it
            packed = self.elements.pack(
                data, count, pack, maybe_bool=maybe_bool, null_is_nan=null_is_nan
            )
        else:
            packed = self.elements.pack_strings(data, count, is_base64=is_base64)
        return Tensor(self.data_type, shape, (packed,), len(packed))

    def _raw_of(
        self, data: object, accepted: Accepted, *, is_base64: bool
    ) -> Buffer | None:
        """Return the bytes of `data` that is no list; None if it is one element."""
        if isinstance(data, bytes | memoryview):
            return data
        if isinstance(data, str) and is_base64 and self.item_size:
            return from_base64(data, f"'data' of input '{self.name}'")
        shape, count = accepted[:2]
        if shape:
            msg = (
                f"'data' of input '{self.name}' must be a list "
                f"of {counted(count, 'element')}, got {shown(data)}"
            )
            raise InvalidTensor(msg)
        return None

    def _from_long(
        self, data: LongList, accepted: Accepted, *, is_base64: bool, null_is_nan: bool
    ) -> Tensor:
        """Return the tensor of a list that is read, and packed, in blocks."""
        shape, count = accepted[:2]
        # Brackets beyond those of the shape are ignored. A flat list fits any shape.
        is_flat = data.depth == 1 and data.dims is not None
        fits = is_flat or data.dims == shape or data.depth > max(1, len(shape))
        if data.count != count or not fits:
            true = "unevenly nested" if data.dims is None else written(data.dims)
            msg = (
                "Unable to parse 'data': Shape does not match true shape of 'data' "
                f"field (input '{self.name}' has shape {written(shape)}, its data "
                f"{true}: the shape holds {counted(count, 'element')}, 'data' has "
                f"{data.count})"
            )
            raise InvalidTensor(msg)
        return self._from_blocks(
            data.blocks(), shape, is_base64=is_base64, null_is_nan=null_is_nan
        )

    def _from_blocks(
        self,
        blocks: Iterable[list[Any]],
        shape: Shape,
        *,
        is_base64: bool,
        null_is_nan: bool,
    ) -> Tensor:
        """Return the tensor of many elements, packed some thousand at a time."""
        parts: list[bytes] = []
        done = 0
        for block in blocks:
            size = len(block)
            reserve(self.item_size * size)
            if self.item_size:
                packed = self.elements.pack(
                    block,
                    size,
                    packer(self.spec.type, size),
                    null_is_nan=null_is_nan,
                    first=done,
                )
            else:
                packed = self.elements.pack_strings(
                    block, size, is_base64=is_base64, first=done
                )
            if not self.item_size:
                reserve(len(packed))
            parts.append(packed)
            done += size
        reserve(sum(map(len, parts)))
        whole = b"".join(parts)
        return Tensor(self.data_type, shape, (whole,), len(whole))

    def from_bytes(
        self, parts: Sequence[Buffer], nbytes: int, accepted: Accepted
    ) -> Tensor:
        """Return the tensor of bytes as received, which are checked but not copied.

        Only the bytes of BYTES tensors are joined, if they are in several parts.
        """
        shape, count, expected, _ = accepted
        if expected < 0:
            joined = gather(parts)
            self.elements.check_framing(joined, count)
            return Tensor(self.data_type, shape, (joined,), nbytes)
        if nbytes != expected:
            self.check_size(nbytes, accepted)
        if self.spec.type.kind == "b":
            _check_bools(self.name, parts)
        return Tensor(self.data_type, shape, parts, nbytes)

    def check_size(self, nbytes: int, accepted: Accepted) -> None:
        """Refuse bytes that are not as many as the shape says (BYTES: any)."""
        expected = accepted[2]
        if nbytes != expected and expected >= 0:
            msg = (
                f"input byte size mismatch for input '{self.name}' "
                f"for model '{self._model.name}'. Expected {expected}, got {nbytes}"
            )
            raise InvalidTensor(msg)

    def from_nested(
        self, value: Any, *, maybe_bool: bool = True, null_is_nan: bool = False
    ) -> Tensor:
        """Return the tensor of a shorthand value: nested lists, a scalar, or bytes."""
        if isinstance(value, bytes | memoryview) and self.item_size:
            return self.from_raw((value,), len(value))
        if type(value) is LongList:
            if value.dims is None:
                msg = f"the lists of input '{self.name}' are nested unevenly"
                raise InvalidTensor(msg)
            shape = completed(value.dims, self.shape)
            shape, _, nbytes, _ = self.accept_parsed(shape)
            if nbytes > self._limits.max_body_bytes:
                raise self._too_large(shape, nbytes)
            return self._from_blocks(
                value.blocks(), shape, is_base64=False, null_is_nan=null_is_nan
            )
        shape, flat = discover(self.name, value, self.shape, self._limits)
        if type(value) is not list:
            is_one = fits(self.shape, shape)
            self.elements.check_single(value, is_one, written(self.shape))
        return self.from_values(
            flat,
            self.accept_parsed(shape),
            maybe_bool=maybe_bool,
            null_is_nan=null_is_nan,
        )

    def _too_large(self, shape: Shape, nbytes: int) -> BodyTooLarge:
        what = f"input '{self.name}' of shape {written(shape)}"
        return larger_than_allowed(nbytes, self._limits.max_body_bytes, tensor=what)

    def from_raw(self, parts: Sequence[Buffer], nbytes: int) -> Tensor:
        """Return the tensor of bytes without a stated shape."""
        if not self.item_size:
            return self._from_raw_string(parts)
        shape = deduce(
            self.name,
            nbytes,
            self.item_size,
            self.shape,
            batched=self._model.is_batched,
        )
        return self.from_bytes(parts, nbytes, self.accept_parsed(shape))

    def _from_raw_string(self, parts: Sequence[Buffer]) -> Tensor:
        dims = self.shape or ()
        inner = dims[1:] if self._model.is_batched else dims
        if inner != (1,) and not (inner == () and len(dims) == 1):
            msg = (
                f"For BYTE datatype raw input '{self.name}', the model must have input "
                f"shape [1], it has {written(self.shape)}"
            )
            raise InvalidTensor(msg)
        return self.from_file(parts)

    def from_file(self, parts: Sequence[Buffer]) -> Tensor:
        """Return the tensor of a BYTES input whose element is one file."""
        rank = 1 if self.shape is None else len(self.shape)
        accepted = self.accept_parsed((1,) * rank)
        packed = self.elements.pack_strings([b"".join(parts)], 1)
        return Tensor(self.data_type, accepted[0], (packed,), len(packed))

    def from_texts(self, values: list[Any], accepted: Accepted) -> Tensor:
        """Return the tensor of strings from a .npy array of text or bytes."""
        where = f"an element of input '{self.name}'"
        reserve(_STRING * len(values))
        raws = [v if isinstance(v, bytes) else encode_text(v, where) for v in values]
        packed = self.elements.pack_strings(raws, accepted[1])
        return Tensor(self.data_type, accepted[0], (packed,), len(packed))

    def __repr__(self) -> str:
        return f"<Input {self.name!r} {self.datatype}{written(self.shape)}>"
