"""STRING elements: a 4-byte little-endian length and that many bytes, one after
another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from popef_io.errors import InvalidValueError, LimitError
from popef_io.layout import STRING_HEAD
from popef_io.validation import STRING_HEAD_SIZE

_MAX_STRING_SIZE = (1 << 32) - 1  # bytes
#: Strings handled at a time. A call in C over a million of them would keep the
#: interpreter's lock for 80 ms.
_BLOCK = 8192


def encode_strings(elements: Iterable[Any] | np.ndarray[Any, Any]) -> bytes:
    """Return the bytes of strings, in row-major order. Encode text as UTF-8.

    Raises InvalidValueError for an element that is neither bytes nor text, and
    LimitError for one of 4 GiB.
    """
    if not isinstance(elements, np.ndarray):
        return _encoded(elements)
    flat = elements.ravel()
    blocks = (flat[begin : begin + _BLOCK] for begin in range(0, flat.size, _BLOCK))
    return b"".join([_encoded(block.tolist()) for block in blocks])


def _encoded(elements: Iterable[Any]) -> bytes:
    parts = []
    for element in elements:
        data = _bytes_of(element)
        parts.append(len(data).to_bytes(STRING_HEAD_SIZE, "little"))
        parts.append(data)
    return b"".join(parts)


def decode_strings(
    view: memoryview | bytes, shape: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return the strings in `view` as an object array of bytes, of `shape`.

    Raises InvalidValueError if `view` does not hold exactly as many strings.
    """
    count = 1
    for size in shape:
        count *= size
    data = bytes(view)
    if count * STRING_HEAD_SIZE > len(data):
        raise InvalidValueError(f"{len(data)} bytes cannot hold {count} strings")
    array = np.empty(count, dtype=object)
    position = 0
    for begin in range(0, count, _BLOCK):
        block = range(begin, min(begin + _BLOCK, count))
        array[begin : block.stop], position = _split(data, position, block, count)
    if position != len(data):
        raise InvalidValueError(
            f"{len(data) - position} unexpected bytes follow the last string"
        )
    return array.reshape(shape)


def _bytes_of(element: Any) -> bytes:
    if isinstance(element, str):
        try:
            element = element.encode()
        except UnicodeEncodeError as error:
            raise InvalidValueError(f"not valid Unicode: {error.reason}") from None
    if not isinstance(element, bytes):
        kind = type(element).__name__
        raise InvalidValueError(f"a STRING element must be bytes or str, got {kind}")
    if len(element) > _MAX_STRING_SIZE:
        raise LimitError("size of a STRING element", len(element), _MAX_STRING_SIZE)
    return element


def _split(
    data: bytes, position: int, block: range, count: int
) -> tuple[list[bytes], int]:
    """Return the strings `block` of `count` from `position` on, and their end."""
    elements: list[bytes] = []
    end = len(data)
    for index in block:
        begin = position + STRING_HEAD_SIZE
        # `unpack_from` takes half the time of a slice and `int.from_bytes`.
        position = (
            begin + STRING_HEAD.unpack_from(data, position)[0] if begin <= end else -1
        )
        if not begin <= position <= end:
            raise InvalidValueError(
                f"string {index} of {count} extends past the end of the data"
            )
        elements.append(data[begin:position])
    return elements, position
