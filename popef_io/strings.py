"""STRING elements: a 4-byte little-endian length and that many bytes, one after
another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from popef_io.errors import InvalidValueError, LimitError
from popef_io.layout import STRING_HEAD
from popef_io.validation import STRING_HEAD_SIZE

try:
    from popef_io._strings import end_of_strings, is_alone, pack_strings, split_strings
except ImportError:  # plain Python

    def _leave_to_python(*_: object) -> None:
        pass

    end_of_strings = is_alone = pack_strings = split_strings = _leave_to_python  # type: ignore[assignment]

__all__ = [
    "decode_strings",
    "encode_strings",
    "end_of_strings",
    "is_alone",
    "pack_strings",
    "string_blocks",
]

_MAX_STRING_SIZE = (1 << 32) - 1  # bytes
#: Strings handled at a time. A call in C over a million of them would keep the
#: interpreter's lock for 80 ms.
_BLOCK = 4096


def encode_strings(elements: Iterable[Any] | np.ndarray[Any, Any]) -> bytes:
    """Return the bytes of strings, in row-major order. Encode text as UTF-8.

    Raises InvalidValueError for an element that is neither bytes nor text, and
    LimitError for one of 4 GiB.
    """
    if not isinstance(elements, np.ndarray):
        return _encoded(list(elements))
    flat = elements.ravel()
    blocks = (flat[begin : begin + _BLOCK] for begin in range(0, flat.size, _BLOCK))
    return b"".join([_encoded(block.tolist()) for block in blocks])


def _encoded(elements: list[Any]) -> bytes:
    packed = pack_strings(elements, _MAX_STRING_SIZE)
    if packed is not None:
        return packed
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
    count = math.prod(shape)
    if any(size < 0 for size in shape):
        raise InvalidValueError(f"a shape has no negative sizes, got {shape}")
    if count * STRING_HEAD_SIZE > len(view):
        raise InvalidValueError(f"{len(view)} bytes cannot hold {count} strings")
    array = np.empty(count, dtype=object)
    begin = 0
    for block in string_blocks(view, count):
        array[begin : begin + len(block)] = block
        begin += len(block)
    return array.reshape(shape)


def string_blocks(view: memoryview | bytes, count: int) -> Iterator[list[bytes]]:
    """Yield the `count` strings in `view`, some thousand at a time.

    Raises InvalidValueError if `view` does not hold exactly as many strings.
    """
    position = 0
    for begin in range(0, count, _BLOCK):
        size = min(_BLOCK, count - begin)
        found = split_strings(view, position, size)
        elements, position = found or _read(view, position, begin, size, count)
        yield elements
    if position != len(view):
        raise InvalidValueError(
            f"{len(view) - position} unexpected bytes follow the last string"
        )


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


def _read(
    data: memoryview | bytes, position: int, first: int, size: int, count: int
) -> tuple[list[bytes], int]:
    """Return `size` of `count` strings from `position` on, and where they end.

    `first` is the index of the first one.
    """
    elements: list[bytes] = []
    end = len(data)
    for index in range(first, first + size):
        begin = position + STRING_HEAD_SIZE
        # `unpack_from` takes half the time of a slice and `int.from_bytes`.
        position = (
            begin + STRING_HEAD.unpack_from(data, position)[0] if begin <= end else -1
        )
        if not begin <= position <= end:
            raise InvalidValueError(
                f"string {index} of {count} extends past the end of the data"
            )
        element = data[begin:position]
        elements.append(element if type(element) is bytes else bytes(element))
    return elements, position
