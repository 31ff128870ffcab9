"""Lists in a JSON body that stay text until their tensors are made.

No object is made of each number of a `NumberList`: if the hot path is compiled
(docs/how-to/tune.md), `_numbers.c` turns its text into the bytes of its tensor. A
`LongList` is parsed in blocks. json_lists.py finds both in a body. They are read once
the shape and datatype of their inputs are known and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from app.codec.memory_check import reserve
from app.errors import InvalidRequest, MalformedBody, malformed_json
from app.give_way import give_way

try:
    from app.codec._numbers import pack
except ImportError:  # plain Python
    pack = None  # type: ignore[assignment]

Parse: TypeAlias = Callable[[bytes], Any]

#: Below this size, making objects is as fast.
SMALL = 512

# Bytes that each bracket or comma of a long list takes while its shape is found.
_STRUCTURE = 4
# Bytes of text that are parsed together.
_STEP = 1 << 15
_QUOTE, _OPEN, _CLOSE = b'"[]'
_SPACE = b" \t\r\n"
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[],"))
_BLANKED = bytes.maketrans(b"[]", b"  ")
#: All that is neither a bracket nor a comma becomes a letter.
_ONE_VALUE = bytes(c if c in b"[]," else ord("v") for c in range(256))
#: What a list cannot have, with a letter for each byte of its values.
_MISPLACED = (b"v[", b"][", b"]v")


class Unusual(Exception):
    """The body must be read again, by plain Python."""


class NumberList:
    """The text of a JSON list: `text[start:end]`, brackets and all."""

    __slots__ = ("end", "start", "text")

    def __init__(self, text: bytes, start: int, end: int) -> None:
        self.text = text
        self.start = start
        self.end = end

    def pack(self, shape: tuple[int, ...], code: str | None) -> bytes:
        """Return the little-endian bytes of the tensor; `code` is that of `struct`.

        Raises Unusual if the list contains anything else.
        """
        if code is None:
            raise Unusual
        packed = pack(self.text, self.start, self.end, shape, code)
        if packed is None:
            raise Unusual
        return packed

    def __repr__(self) -> str:
        return f"<NumberList of {self.end - self.start} bytes>"


def may_have_lists(text: bytes) -> bool:
    """Return whether it is worth finding a body's `NumberList` objects."""
    return pack is not None and len(text) >= SMALL


class LongList:
    """The text of a long JSON list of scalars, nested or not, read in blocks.

    `count` is the number of its elements, `depth` its brackets at the first of them,
    and `dims` its shape: None if it is nested unevenly. `parse` parses the text of a
    block. Raises MalformedBody if it is not a list.
    """

    __slots__ = ("_end", "_parse", "_start", "_text", "count", "depth", "dims")

    def __init__(self, text: bytes, start: int, end: int, parse: Parse) -> None:
        self._text, self._start, self._end = text, start, end
        self._parse = parse
        self.count, self.depth = 0, 1
        parts: list[bytes] = []
        for _, skeleton in self._pieces():
            values = skeleton.translate(_ONE_VALUE, _SPACE)
            if any(pair in values for pair in _MISPLACED):
                raise _misplaced()
            parts.append(skeleton.translate(None, _NOT_STRUCTURE))
            self.count += parts[-1].count(b",") + 1
            give_way()
        size = sum(map(len, parts))
        self.dims: tuple[int, ...] | None = (self.count,)
        if size == self.count - len(parts):  # only commas
            return
        reserve(_STRUCTURE * size)
        inner = b",".join(parts)
        self.depth += len(inner) - len(inner.lstrip(b"["))
        self.dims = _dims(inner, self.count, self.depth)
        if self.dims is None:
            _check_balance(parts)

    def blocks(self) -> Iterator[list[Any]]:
        """Yield the elements, flat, some thousand at a time. Raises MalformedBody."""
        for piece, skeleton in self._pieces():
            expected = skeleton.count(b",") + 1
            if b'"' not in piece:
                flat = piece.translate(_BLANKED)
            else:
                characters = np.frombuffer(piece, np.uint8).copy()
                structure = np.frombuffer(skeleton, np.uint8)
                characters[(structure == _OPEN) | (structure == _CLOSE)] = _SPACE[0]
                flat = characters.tobytes()
            values = self._parse(b"[" + flat + b"]")
            if len(values) != expected:  # nothing stands between two commas
                raise _misplaced()
            yield values
            give_way()

    def values(self) -> list[Any]:
        """Return the whole list as a parser would."""
        flat: list[Any] = []
        for block in self.blocks():
            flat += block
        if self.dims is None:
            raise InvalidRequest("a list of the document is nested unevenly")
        for size in reversed(self.dims[1:]):
            flat = [flat[i : i + size] for i in range(0, len(flat), size)]
        return flat

    def _pieces(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the text between the outer brackets, cut at commas, and the same text
        without the content of strings.
        """
        text, at, stop, step = self._text, self._start + 1, self._end - 1, _STEP
        while True:
            end = min(at + step, stop)
            piece = text[at:end]
            skeleton = piece if b'"' not in piece else skeleton_of(piece)
            cut = len(piece) if end == stop else skeleton.rfind(b",")
            if cut < 0:  # inside an element longer than a block
                step *= 2
                continue
            yield piece[:cut], skeleton[:cut]
            if end == stop:
                return
            at, step = at + cut + 1, _STEP

    def __repr__(self) -> str:
        return f"<LongList of {self.count} elements>"


def skeleton_of(piece: bytes) -> bytes:
    """Return a piece of JSON that begins outside strings, with the content of strings
    as ``x``.

    It may end within one.
    """
    masked = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    characters = np.frombuffer(masked, np.uint8)
    within = np.logical_xor.accumulate(characters == _QUOTE)
    return np.where(within, np.uint8(ord("x")), characters).tobytes()


def _misplaced() -> MalformedBody:
    return malformed_json("unexpected bracket or comma in a list")


def _dims(inner: bytes, count: int, depth: int) -> tuple[int, ...] | None:
    """Return the shape of a list from its brackets and commas without the outer ones;
    None if it has none.
    """
    dims: list[int] = []
    product = 1
    for level in range(1, depth):
        end = inner.find(b"]" * level)
        size = inner.count(b",", 0, end) + 1
        if end < 0 or size % product:
            return None
        dims.insert(0, size // product)
        product = size
        give_way()
    if count % product:
        return None
    shape = (count // product, *dims)
    expected = b"," * (shape[-1] - 1)
    for dim in reversed(shape[:-1]):
        if dim * (len(expected) + 3) - 1 > len(inner):
            return None
        expected = (b"[" + expected + b"],") * dim
        expected = expected[:-1]
        give_way()
    return shape if expected == inner else None


def _check_balance(parts: list[bytes]) -> None:
    """Refuse brackets that close more than is open, or do not close."""
    depth = 1
    for part in parts:
        characters = np.frombuffer(part, np.uint8)
        steps = (characters == _OPEN).astype(np.int64) - (characters == _CLOSE)
        depths = depth + np.cumsum(steps)
        if depths.size:
            if int(depths.min()) < 1:
                raise _misplaced()
            depth = int(depths[-1])
        give_way()
    if depth != 1:
        raise _misplaced()
