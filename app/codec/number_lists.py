"""Lists of numbers in a JSON body, read without making an object of each number.

Where the hot path is compiled (docs/compiled.md), `_numbers.c` turns the text of a list
into the bytes of its tensor. For that the body is parsed without the lists that stand
behind ``"data":``, each replaced by an empty one, and they are read when the shape and
the datatype of their inputs are known and have been checked.

Everything unusual is left to the way of plain Python, from the start of the body
(`Unusual`): the answers are the same either way, errors too. It is usual that

- there is no backslash outside the lists, so that every quotation mark is one,
- ``"data"`` stands nowhere but in front of the lists,
- exactly the inputs have empty lists where those were cut out,
- the lists hold as many numbers, nested or not, as the shape says.
"""

from __future__ import annotations

from typing import Any

from app.codec.json_text import UNBOUNDED, check_values, parse_json
from app.codec.shapes import Shape
from app.limits import Limits

try:
    from app.codec._numbers import pack
except ImportError:  # plain Python
    pack = None  # type: ignore[assignment]

#: Below this size, objects are as fast.
SMALL = 512
#: Inputs of a request that are looked for.
MOST_LISTS = 64

_KEY = b'"data":'


class Unusual(Exception):
    """The body has to be read again, as plain Python does."""


class NumberList:
    """The text of a JSON list: `text[start:end]`, brackets and all."""

    __slots__ = ("end", "start", "text")

    def __init__(self, text: bytes, start: int, end: int) -> None:
        self.text = text
        self.start = start
        self.end = end

    def pack(self, shape: Shape, code: str | None) -> bytes:
        """The little-endian bytes of the tensor; `code` is that of `struct`.

        Raises Unusual where the list does not hold just that.
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
    """Returns whether `parse_with_lists` is worth trying."""
    return pack is not None and len(text) >= SMALL


def parse_with_lists(text: bytes, limits: Limits) -> dict[str, Any]:
    """The document of a body, with a `NumberList` as `data` of its inputs.

    Raises Unusual where it has to be parsed as a whole, and what `parse_json` does.
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
    """The lists behind the keys ``"data"``, up to the last bracket before the next
    quotation mark or brace. Looks at no byte more than a few times."""
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
