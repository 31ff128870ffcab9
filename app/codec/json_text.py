"""JSON text to Python objects: orjson, and what orjson alone does not do.

- ``NaN`` and ``Infinity`` literals, which stock clients send, are read by the standard
  library's parser; orjson refuses them.
- A key that stands twice in one object is refused. A parser keeps the last one
  silently, and then somebody wonders where an input went. Counting colons tells at
  once that there is none in all but odd documents.
- Whether a list of numbers may hold booleans is answered from the text, because asking
  every element costs as much as packing them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import orjson

from app.codec.shapes import LIST_WEIGHT, too_deep, too_many_values
from app.errors import RepeatedKey, malformed_json
from app.limits import Limits

# Below this size, asking every element is cheaper than looking into the text.
_SMALL = 1024
# What orjson's message has about nesting, depending on its release.
_TOO_DEEP = ("depth", "ecursion")
# Up to this size a text is parsed without counting first: it cannot become much.
_LARGE = 4 << 20
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"[ \t\r\n]*(:?)', re.DOTALL)


def parse_json(text: bytes, limits: Limits) -> Any:
    """The value of a JSON text. MalformedBody or InvalidRequest where it is none."""
    check_values(text, limits)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if any(word in str(error) for word in _TOO_DEEP):
            raise too_deep(limits) from None
        if b"NaN" not in text and b"Infinity" not in text:
            raise malformed_json(str(error)) from None
        return _parse_with_literals(text, limits)
    if type(value) is dict and _may_repeat_keys(text, value):
        _refuse_repeated_keys(text, value, limits)
    return value


def check_values(text: bytes, limits: Limits) -> None:
    """Bounds what a large text becomes: an empty list takes 24 times its text."""
    if len(text) <= _LARGE:
        return
    lists = text.count(b"[") + text.count(b"{")
    if text.count(b",") + LIST_WEIGHT * lists > limits.max_document_values:
        raise too_many_values(limits)


def _parse_with_literals(text: bytes, limits: Limits) -> Any:
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique, parse_float=_finite)
    except RecursionError:
        raise too_deep(limits) from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, huge integers
        # The rest of that message is advice to programmers.
        raise malformed_json(str(error).partition("; use sys.")[0]) from None


def _finite(text: str) -> float:
    """A float; 1e999 is refused, as orjson does, and does not become infinity."""
    value = float(text)
    if math.isinf(value):
        msg = f"number {text[:40]} is infinity when parsed as double"
        raise ValueError(msg)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RepeatedKey(key)
            seen.add(key)
    return found


def _may_repeat_keys(text: bytes, document: dict[str, Any]) -> bool:
    """Whether there are more colons than keys: repeated ones, or colons in strings."""
    last_string = text.rfind(b'"')
    keys = len(document)
    inputs = document.get("inputs")
    if type(inputs) is list:
        for item in inputs:
            keys += _count_with_parameters(item)
    elif type(inputs) is dict:
        keys += len(inputs)
    outputs = document.get("outputs")
    if type(outputs) is list:
        for item in outputs:
            keys += _count_with_parameters(item)
    parameters = document.get("parameters")
    if type(parameters) is dict:
        keys += len(parameters)
    # Numbers, which may be megabytes, follow the last string; count() is slow on them.
    colons = text.count(b":", 0, last_string) + (text.find(b":", last_string) >= 0)
    return colons > keys


def _count_with_parameters(item: object) -> int:
    if type(item) is not dict:
        return 0
    parameters = item.get("parameters")
    return len(item) + (len(parameters) if type(parameters) is dict else 0)


def _refuse_repeated_keys(text: bytes, document: object, limits: Limits) -> None:
    """Counts the keys of the text exactly; says which one if there are too many."""
    written = sum(1 for colon in _STRING.findall(text) if colon)
    if written <= _count_keys(document):
        return
    _parse_with_literals(text, limits)


def _count_keys(document: object) -> int:
    count = 0
    pending = [document]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            count += len(item)
            pending += [v for v in item.values() if isinstance(v, dict | list)]
        elif isinstance(item, list):
            pending += [v for v in item if isinstance(v, dict | list)]
    return count


def may_hold_booleans(text: bytes, inputs: list[Any] | dict[str, Any]) -> bool:
    """Whether a boolean may stand in the values of the inputs.

    Between a key and the next quotation mark a list of numbers has neither a ``u`` nor
    an ``s``, which ``true`` and ``false`` have. Says True where it cannot tell.
    """
    if len(text) < _SMALL:
        return True
    find = text.find
    end = 0
    for item in inputs:
        key = b'"%b"' % item.encode() if isinstance(item, str) else b'"data"'
        start = find(key, end)
        if start < 0:
            return True
        start += len(key)
        end = find(b'"', start)
        if end < 0:
            end = len(text)
        if find(b"u", start, end) >= 0 or find(b"s", start, end) >= 0:
            return True
    return False
