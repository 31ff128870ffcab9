"""Convert lists of JSON or msgpack values to the bytes of a tensor, strictly and
exactly.

`struct` packs a list of numbers 2.5 times faster than numpy converts it, and is
stricter. It refuses numbers out of range, fractions for integers, strings and null, and
never wraps or truncates. It accepts booleans, because Python's booleans are integers.
So the module searches for booleans if the text may contain some.

After a failure a slow path searches for the element that caused it.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from app.codec.half_floats import pack_bf16
from app.errors import InvalidTensor
from app.give_way import BLOCK, MANY, give_way
from app.sizes import counted
from app.spec import Datatype
from popef_io import end_of_strings, pack_strings

Pack: TypeAlias = Callable[..., bytes]

_SPECIAL: dict[str | None, float] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
_BOOL = {bool}
_LENGTH = struct.Struct("<I")


def packer(datatype: Datatype, count: int) -> Pack | None:
    """Pack exactly `count` numbers given as arguments; None if `struct` cannot."""
    if datatype.struct_code is None:
        return None
    return struct.Struct(f"<{count}{datatype.struct_code}").pack


class Elements:
    """Reader of the elements of one input, which knows its datatype and name for
    errors.
    """

    __slots__ = ("datatype", "max_string_bytes", "name")

    def __init__(self, name: str, datatype: Datatype, max_string_bytes: int) -> None:
        self.name = name
        self.datatype = datatype
        self.max_string_bytes = max_string_bytes

    def pack(
        self,
        values: Sequence[Any],
        count: int,
        pack: Pack | None,
        *,
        maybe_bool: bool = True,
        null_is_nan: bool = False,
        first: int = 0,
    ) -> bytes:
        """Return the bytes of `values`, a flat list of `count` elements.

        `first` is the index of its first element.

        Raises InvalidTensor, naming the first element that does not fit.
        """
        if len(values) != count:
            raise self._mismatch(values, count, first)
        if pack is None and self.datatype.kind == "f":
            pack = _bf16
        if pack is not None:
            if not maybe_bool or bool not in set(map(type, values)):
                try:
                    return pack(*values)
                except (struct.error, OverflowError):
                    pass
            return self._pack_slowly(values, count, pack, null_is_nan, first)
        if not values or set(map(type, values)) == _BOOL:
            return bytes(values)
        raise self._mismatch(values, count, first)

    def _pack_slowly(
        self,
        values: Sequence[Any],
        count: int,
        pack: Pack,
        null_is_nan: bool,
        first: int,
    ) -> bytes:
        """Pack the values again, accepting NaN and infinities in JSON's spellings."""
        if self.datatype.kind == "f":
            words: dict[str | None, float] = {**_SPECIAL}
            if null_is_nan:
                words[None] = math.nan
            values = [
                words.get(value, value)
                if value is None or type(value) is str
                else value
                for value in values
            ]
            if bool not in set(map(type, values)):
                try:
                    return pack(*values)
                except (struct.error, OverflowError):
                    pass
        raise self._mismatch(values, count, first)

    def _mismatch(self, values: Sequence[Any], count: int, first: int) -> InvalidTensor:
        """Return the error that names the first element that does not fit."""
        if len(values) != count:
            return InvalidTensor(
                "Unable to parse 'data': Shape does not match true shape of 'data' "
                f"field (input '{self.name}': the shape holds "
                f"{counted(count, 'element')}, "
                f"'data' has {len(values)})"
            )
        for index, value in enumerate(values, first):
            why = self._objection(value)
            if why:
                msg = (
                    f"element {index} of input '{self.name}' {why}; "
                    f"the model expects {self.datatype.name}"
                )
                if value is None and self.datatype.kind == "f":
                    msg += "; to read null as NaN, set the parameter 'missing' to 'nan'"
                return InvalidTensor(msg)
        return InvalidTensor(f"input '{self.name}' is not {self.datatype.name} data")

    def _objection(self, value: object) -> str:
        """Return why a value is not an element of this datatype; empty if it is one."""
        kind, size = self.datatype.kind, self.datatype.item_size
        if isinstance(value, bool):
            return "" if kind == "b" else f"is {_described(value)}"
        if not isinstance(value, int | float) or kind == "b":
            return f"is {_described(value)}"
        if kind == "f":
            if self._fits_float(value):
                return ""
            return f"is {_described(value)}, which is out of range"
        low = -(1 << (8 * size - 1)) if kind == "i" else 0
        high = (1 << (8 * size - (kind == "i"))) - 1
        if isinstance(value, float):  # it may be an integer of more than 64 bits
            # A float is equal to `high + 1`; compiled code would round `high` to it.
            where = "" if low <= value < high + 1 else f" in {low}..{high}"
            return f"is {_described(value)}, not an integer{where}"
        if low <= value <= high:
            return ""
        return f"is {_described(value)}, which is not in {low}..{high}"

    def check_single(self, value: object, is_one: bool, shape: str) -> None:
        """Refuse a value that is no list, unless the model takes one element; refuse
        objects in any case.
        """
        hint = "(Array.from(x) of a typed array in JavaScript)"
        if type(value) is not dict:
            if is_one:
                return
            hint = shape
        msg = f"input '{self.name}' is {_described(value)}; expected nested lists"
        raise InvalidTensor(f"{msg} {hint}")

    def _fits_float(self, value: int | float) -> bool:
        try:
            (packer(self.datatype, 1) or _bf16)(value)
        except (struct.error, OverflowError):
            return False
        return True

    def pack_strings(
        self, values: list[Any], count: int, *, is_base64: bool = False, first: int = 0
    ) -> bytes:
        """Return the bytes of a BYTES tensor: each element after its 4-byte length.

        Text becomes UTF-8; with `is_base64`, text is decoded from base64 instead.
        """
        if len(values) != count:
            msg = (
                f"expected {count} string elements for inference input '{self.name}', "
                f"got {len(values)}"
            )
            raise InvalidTensor(msg)
        parts: list[bytes | memoryview] = []
        for start in range(0, count, BLOCK):
            block = values[start : start + BLOCK]
            usual = None if is_base64 else pack_strings(block, self.max_string_bytes)
            if usual is not None:
                parts.append(usual)
            else:
                for index, value in enumerate(block, first + start):
                    raw = self._string(value, index, is_base64)
                    parts.append(_LENGTH.pack(len(raw)))
                    parts.append(raw)
            if count > MANY:
                give_way()
        return b"".join(parts)

    def _string(self, value: object, index: int, is_base64: bool) -> bytes | memoryview:
        where = f"element {index} of input '{self.name}'"
        raw: bytes | memoryview
        if isinstance(value, bytes | memoryview) and not is_base64:
            raw = value
        elif isinstance(value, str):
            raw = from_base64(value, where) if is_base64 else encode_text(value, where)
        else:
            msg = f"{where} is {_described(value)}; the model expects BYTES (a string)"
            if value is None:
                msg += '; send "" for a gap'
            raise InvalidTensor(msg)
        if len(raw) > self.max_string_bytes:
            msg = (
                f"{where} has {len(raw)} bytes, "
                f"more than the {self.max_string_bytes} allowed"
            )
            raise InvalidTensor(msg)
        return raw

    def check_framing(self, data: bytes | bytearray | memoryview, count: int) -> None:
        """Refuse BYTES data whose lengths do not add up to `count` elements."""
        if end_of_strings(data, count, self.max_string_bytes) == len(data):
            return
        offset, found, end = 0, 0, len(data)
        unpack, limit = _LENGTH.unpack_from, self.max_string_bytes
        while offset < end and found < count:
            if end - offset < 4:
                break
            (length,) = unpack(data, offset)
            if length > limit or length > end - offset - 4:
                msg = (
                    f"element {found} of input '{self.name}' has a stated length of "
                    f"{length} bytes, but {end - offset - 4} are left and {limit} are "
                    "allowed"
                )
                raise InvalidTensor(msg)
            offset += 4 + length
            found += 1
            if found % BLOCK == 0 and count > MANY:
                give_way()
        if found != count or offset != end:
            more = (
                " and more"
                if found == count
                else f" and {counted(end - offset, 'byte')}"
            )
            msg = (
                f"expected {count} string elements for inference input '{self.name}', "
                f"got {found}{more if offset != end else ''}"
            )
            raise InvalidTensor(msg)

    def __repr__(self) -> str:
        return f"<Elements {self.name!r} {self.datatype.name}>"


def _bf16(*values: Any) -> bytes:
    return pack_bf16(values)


def encode_text(value: str, where: str) -> bytes:
    """Encode a string as UTF-8. Raises InvalidTensor for half of a surrogate pair."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        msg = f"{where} cannot be written as UTF-8: {error.reason}"
        raise InvalidTensor(msg) from None


def from_base64(value: str, where: str) -> bytes:
    """Return the bytes of standard base64; InvalidTensor for anything else."""
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidTensor(f"{where} is not valid base64: {error}") from None


def _described(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, list):
        return "a list (nested deeper than the shape, or unevenly)"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bytes | memoryview):
        return f"{len(value)} bytes"
    text = repr(value) if isinstance(value, str) else _number(value)
    return f"the string {text[:80]}" if isinstance(value, str) else text


def _number(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return str(value)
