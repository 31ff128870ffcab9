"""Lists of numbers in a JSON body, read without making an object of each number.

If the hot path is compiled (docs/how-to/tune.md), `_numbers.c` turns the text of a list
into the bytes of its tensor. The body is parsed with an empty list in place of each
list after ``"data":``. The lists are read once the shape and datatype of their inputs
are known and checked.

Anything unusual is left to plain Python, from the start of the body (`Unusual`).
Answers and errors are the same. A body is usual if

- there is no backslash outside the lists, so every quotation mark counts,
- ``"data"`` occurs only before the lists,
- exactly the inputs have empty lists in the places that were cut out,
- the lists hold as many numbers, nested or not, as the shape says.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np

from app.codec.json_text import UNBOUNDED, check_values, parse_json
from app.codec.memory_check import reserve
from app.codec.shapes import Shape
from app.errors import InvalidRequest, MalformedBody, malformed_json
from app.give_way import give_way
from app.limits import Limits

try:
    from app.codec._numbers import pack
except ImportError:  # plain Python
    pack = None  # type: ignore[assignment]

#: Below this size, making objects is as fast.
SMALL = 512
#: Up to this number of inputs, the lists of a request are searched for.
MOST_LISTS = 64

_KEY = b'"data":'


#: In documents of at least this many bytes, long lists are read in blocks.
LARGE = 1 << 19
# Bytes of text: the least length of a long list, and the length of a block.
_LONG = 1 << 16
# Bytes that each bracket or comma of a long list takes while its shape is found.
_STRUCTURE = 4
_STEP = 1 << 15
_QUOTE, _COLON, _OPEN, _CLOSE, _COMMA = b'":[],'
_ESCAPE = ord("\\")
_ESCAPES = re.compile(rb"\\*")
_SPACE = b" \t\r\n"
_BRACES = np.zeros(256, np.bool_)
_BRACES[list(b":{}")] = True
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

    def pack(self, shape: Shape, code: str | None) -> bytes:
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
    """Return whether `parse_with_lists` is worth trying."""
    return pack is not None and len(text) >= SMALL


def parse_with_lists(text: bytes, limits: Limits) -> dict[str, Any]:
    """Return the document of a body, with a `NumberList` as `data` of its inputs.

    Raises Unusual if it must be parsed as a whole, and the errors of `parse_json`.
    """
    found = _find_lists(text)
    rest = _without(text, found)
    if rest.count(b'"data"') != len(found) or b"\\" in rest:
        raise Unusual
    if len(text) > UNBOUNDED:
        check_values(text, limits)
    document = parse_json(rest, limits)
    _put_back(document, found)
    return document  # type: ignore[no-any-return]


def _find_lists(text: bytes) -> list[NumberList]:
    """Return the lists behind the keys ``"data"``, up to the last bracket before the
    next quotation mark or brace. Looks at no byte more than a few times.
    """
    found: list[NumberList] = []
    end = 0
    while (key := text.find(_KEY, end)) >= 0:
        start = key + len(_KEY)
        if text[start : start + 1] == b" ":
            start += 1
        if text[start : start + 1] != b"[" or len(found) == MOST_LISTS:
            raise Unusual
        stop = text.find(b'"', start)
        if stop < 0:
            stop = len(text)
        brace = text.find(b"}", start, stop)
        end = text.rfind(b"]", start, stop if brace < 0 else brace) + 1
        if end <= 0:
            raise Unusual
        found.append(NumberList(text, start, end))
    if not found:
        raise Unusual
    return found


def _without(text: bytes, lists: list[NumberList]) -> bytes:
    pieces: list[bytes] = []
    end = 0
    for one in lists:
        pieces.append(text[end : one.start])
        end = one.end
    pieces.append(text[end:])
    return b"[]".join(pieces)


def _put_back(document: object, lists: list[NumberList]) -> None:
    inputs = document.get("inputs") if type(document) is dict else None
    if type(inputs) is not list:
        raise Unusual
    count = 0
    for item in inputs:
        data = item.get("data") if type(item) is dict else None
        if type(data) is list and not data:
            if count == len(lists):
                raise Unusual
            item["data"] = lists[count]
            count += 1
    if count != len(lists):
        raise Unusual


class LongList:
    """The text of a long JSON list of scalars, nested or not, read in blocks.

    `count` is the number of its elements, `depth` its brackets at the first of them,
    and `dims` its shape: None if it is nested unevenly. Raises MalformedBody if it is
    not a list.
    """

    __slots__ = ("_end", "_limits", "_start", "_text", "count", "depth", "dims")

    def __init__(self, text: bytes, start: int, end: int, limits: Limits) -> None:
        self._text, self._start, self._end = text, start, end
        self._limits = limits
        parts: list[bytes] = []
        for _, skeleton in self._pieces():
            values = skeleton.translate(_ONE_VALUE, _SPACE)
            if any(pair in values for pair in _MISPLACED):
                raise _misplaced()
            parts.append(skeleton.translate(None, _NOT_STRUCTURE))
            give_way()
        reserve(_STRUCTURE * sum(map(len, parts)))
        inner = b",".join(parts)
        self.count = inner.count(b",") + 1
        self.depth = 1 + len(inner) - len(inner.lstrip(b"["))
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
            values = parse_json(b"[" + flat + b"]", self._limits)
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
            msg = "a list of the document is nested unevenly"
            raise InvalidRequest(msg)
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
            skeleton = piece if b'"' not in piece else _skeleton(piece)
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


def _skeleton(piece: bytes) -> bytes:
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


def _dims(inner: bytes, count: int, depth: int) -> Shape | None:
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
    if count % product:
        return None
    shape = (count // product, *dims)
    expected = b"," * (shape[-1] - 1)
    for dim in reversed(shape[:-1]):
        if dim * (len(expected) + 3) - 1 > len(inner):
            return None
        expected = (b"[" + expected + b"],") * dim
        expected = expected[:-1]
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


def parse_large(text: bytes, limits: Limits) -> Any:
    """Parse a large text like `parse_json`, with a `LongList` for each long list.

    For the thread of large documents: it lets other threads run.
    """
    check_values(text, limits)
    found = _find_long_lists(text)
    if not found:
        return parse_json(text, limits)
    mark = secrets.token_hex(8)
    pieces: list[bytes] = []
    end = 0
    for index, (start, stop) in enumerate(found):
        pieces += [text[end:start], b'"%b%d"' % (mark.encode(), index)]
        end = stop
    document = parse_json(b"".join([*pieces, text[end:]]), limits)
    lists: dict[str, LongList] = {
        f"{mark}{index}": LongList(text, start, stop, limits)
        for index, (start, stop) in enumerate(found)
    }
    left = [len(lists)]
    document = _put_in(document, lists, left, 4)
    return document if left[0] == 0 else parse_json(text, limits)


def _put_in(value: Any, lists: dict[str, LongList], left: list[int], depth: int) -> Any:
    if type(value) is str:
        found = lists.get(value)
        if found is None:
            return value
        left[0] -= 1
        return found
    if depth and type(value) is dict:
        for key, item in value.items():
            value[key] = _put_in(item, lists, left, depth - 1)
    elif depth and type(value) is list:
        for index, item in enumerate(value):
            value[index] = _put_in(item, lists, left, depth - 1)
    return value


def listed(document: Any) -> Any:
    """Return a document of `parse_large` with plain lists, which are made in blocks."""
    if type(document) is LongList:
        return document.values()
    if type(document) is dict:
        return {key: listed(item) for key, item in document.items()}
    if type(document) is list:
        return [listed(item) for item in document]
    return document


def _find_long_lists(text: bytes) -> list[tuple[int, int]]:
    """Return the bounds of lists that follow a colon and hold no object."""
    found: list[tuple[int, int]] = []
    at, start, last, within = 0, -1, -1, False
    size = len(text)
    while at < size:
        end = min(at + _STEP, size)
        if text[end - 1] == _ESCAPE:
            end = min(_ESCAPES.match(text, end).end() + 1, size)  # type: ignore[union-attr]
        block = text[at:end]
        if within or b'"' in block:
            skeleton = _skeleton(b'"' + block if within else block)
            characters = np.frombuffer(skeleton, np.uint8)[1 if within else 0 :]
            within = _ends_within(block, within)
        else:
            characters = np.frombuffer(block, np.uint8)
        closes = np.flatnonzero(characters == _CLOSE)
        marks = np.flatnonzero(_BRACES[characters])
        before = np.searchsorted(closes, marks)
        for mark, index in zip(marks.tolist(), before.tolist(), strict=True):
            if index:
                last = at + int(closes[index - 1])
            if start >= 0 and last - start > _LONG:
                found.append((start, last + 1))
            start = -1
            if block[mark] == _COLON:
                begin = at + mark + 1
                while begin < size and text[begin] in _SPACE:
                    begin += 1
                if begin < size and text[begin] == _OPEN:
                    start = begin
        if closes.size:
            last = at + int(closes[-1])
        at = end
        give_way()
    return found


def _ends_within(block: bytes, within: bool) -> bool:
    masked = block.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    return within != (masked.count(b'"') % 2 == 1)
