"""Find the lists of a JSON body that stay text (number_lists.py), and parse the rest.

The body is parsed with an empty list in place of each list after ``"data":``.

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
from functools import partial
from typing import Any

import numpy as np

from app.codec.chunks import join
from app.codec.json_text import UNBOUNDED, check_values, parse_json
from app.codec.messages import Body
from app.codec.number_lists import LongList, NumberList, Unusual, skeleton_of
from app.give_way import give_way
from app.limits import Limits

#: Up to this number of inputs, the lists of a request are searched for.
MOST_LISTS = 64
#: In documents of more bytes, long lists are read in blocks. Documents of more lists,
#: objects and keys are read in a thread, too: each takes a microsecond.
LARGE, _DENSE = 1 << 19, 1 << 14
_KEY = b'"data":'
# Bytes of text: the least length of a long list, and what is searched at a time.
_LONG = 1 << 16
_STEP = 1 << 15
_COLON, _OPEN, _CLOSE = b":[]"
_ESCAPE = ord("\\")
_ESCAPES = re.compile(rb"\\*")
_SPACE = b" \t\r\n"
# Keys of lists in a request that are no tensors.
_NO_TENSORS = frozenset(("outputs", "shape"))
_BRACES = np.zeros(256, np.bool_)
_BRACES[list(b":{}")] = True


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


def is_long(body: Body, most: int = LARGE) -> bool:
    """Return whether parsing JSON or CSV takes too long for the event loop."""
    if not _DENSE < (size := sum(map(len, body))) <= most:
        return size > most
    text = join(body)
    dense = b"[{:" if text[:1] in (b"{", b"[") else b"[{:,\n\r"
    return sum(map(text.count, dense)) > _DENSE


def parse_listed(text: bytes, limits: Limits) -> Any:
    """Parse JSON like `parse_json`, in blocks if it is large."""
    is_large = len(text) > LARGE
    return listed(parse_large(text, limits)) if is_large else parse_json(text, limits)


def parse_large(text: bytes, limits: Limits) -> Any:
    """Parse a large text like `parse_json`, with a `LongList` for each long list.

    For the thread of large documents: it lets other threads run.
    """
    check_values(text, limits)
    found = _find_long_lists(text)
    if not found:
        return parse_json(text, limits)
    parse = partial(parse_json, limits=limits)
    mark = secrets.token_hex(8)
    pieces: list[bytes] = []
    end = 0
    for index, (start, stop) in enumerate(found):
        pieces += [text[end:start], b'"%b%d"' % (mark.encode(), index)]
        end = stop
    document = parse(b"".join([*pieces, text[end:]]))
    lists: dict[str, LongList] = {
        f"{mark}{index}": LongList(text, start, stop, parse)
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
            put = _put_in(item, lists, left, depth - 1)
            value[key] = listed(put) if key in _NO_TENSORS else put
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
            skeleton = skeleton_of(b'"' + block if within else block)
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
