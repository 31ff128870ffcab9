"""Parse JSON text to Python objects: orjson, and checks that orjson lacks.

- ``NaN`` and ``Infinity`` literals, which stock clients send, go to the standard
  library's parser, because orjson refuses them.
- A key that occurs twice in one object is refused. A parser would silently keep the
  last value, and the client would miss an input. The number of colons shows that most
  documents have no such key. In other documents the keys of the text are compared with
  the parsed keys. Their number is limited.
- Half of a surrogate pair is refused, as orjson does, because no encoder could write it
  again.
- The text shows whether a list of numbers may contain booleans. Checking every element
  would cost as much as packing the list.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import orjson

from app.codec.memory_check import ensure_room, reserve
from app.errors import (
    BodyTooLarge,
    InvalidRequest,
    NestedTooDeep,
    RepeatedKey,
    malformed_json,
    too_many_strings,
    too_many_values,
)
from app.give_way import give_way
from app.limits import LIST_WEIGHT, Limits

# Below this size, and for more inputs, it is cheaper to check every element.
_SMALL = 1024
# Words of orjson's message about nesting, which depends on its release.
_TOO_DEEP = ("depth", "ecursion")
_NO_MEMORY = "Not enough memory"
# JSON of up to this size is parsed without counting first: it cannot grow much.
_LARGE = 1 << 20
#: For JSON of up to this size, memory need not be checked either.
UNBOUNDED = 1 << 14
# Upper bounds of the bytes that parsing takes. Without counting: for each byte of text.
# Otherwise: for each byte (twelve are the parser's own), value in a list, list and
# object.
_WEIGHT_UNCOUNTED = 40
_WEIGHTS = (18, 32, 96, 256)
# Upper bound of the bytes that writing takes for each byte read. Numbers get longer
# ("1e9"), and the writer's memory grows by doubling.
_WRITTEN = 12
_QUOTE, _COLON = ord('"'), ord(":")
# Bytes whose counts limit the values that a document can become (`check_values`).
_STRUCTURE = (b"[", b"{", b'"', b'\\"', b",")
_COLONS = (b":",)
# Bytes that are examined together. Their flags take four times as many bytes.
_BLOCK = 1 << 18
# All occurrences share one object, as in the parser.
_LITERALS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# Numbers that functions read before other threads may run: a millisecond.
_PAUSE_AFTER = 1 << 11


def parse_json(text: bytes, limits: Limits) -> Any:
    """Return the value of a JSON text. Raises MalformedBody or InvalidRequest."""
    if len(text) > UNBOUNDED:
        size = check_values(text, limits)
        if len(text) > _LARGE:  # a smaller text is usually part of a document
            reserve(size)
        ensure_room(size)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if _NO_MEMORY in str(error):
            raise MemoryError from None
        if any(word in str(error) for word in _TOO_DEEP):
            raise NestedTooDeep(limits.max_json_depth) from None
        if b"NaN" not in text and b"Infinity" not in text:
            raise malformed_json(str(error)) from None
        return _parse_with_literals(text, limits)
    if type(value) is dict:
        keys = _count_usual_keys(value)
        # There are as many colons as keys, or more if strings contain colons. Numbers,
        # which may be megabytes, follow the last string, and count() is slow on them.
        last_string = text.rfind(b'"')
        colons = (
            text.count(b":", 0, last_string)
            if last_string <= _BLOCK
            else _count(text, _COLONS, last_string)[0]
        )
        if colons + (text.find(b":", last_string) >= 0) > keys:
            _refuse_repeated_keys(text, value, keys, limits)
    return value


def check_values(text: bytes, limits: Limits) -> int:
    """Limit the memory that a large text becomes: an empty list takes 24 times its
    text, a short string 14 times.

    Many keys also occupy the parser, which delays all other requests.

    Returns the most bytes that the document may take.
    """
    if len(text) <= _LARGE:
        return _WEIGHT_UNCOUNTED * len(text)
    _check_colons(text, limits)
    lists, objects, quotes, escaped, commas = _count(text, _STRUCTURE, len(text))
    if quotes - escaped > 2 * (limits.max_strings + limits.max_document_keys):
        raise too_many_strings(limits.max_strings)
    values = commas + quotes
    if values + LIST_WEIGHT * (lists + objects) > limits.max_document_values:
        raise too_many_values(limits.max_document_values, LIST_WEIGHT)
    counts = (len(text), values, lists, objects)
    return sum(count * weight for count, weight in zip(counts, _WEIGHTS, strict=True))


def _count(text: bytes, wanted: tuple[bytes, ...], end: int) -> list[int]:
    """Return the number of times that each of the wanted bytes begins before `end`.

    It counts in blocks, because `bytes.count` holds the interpreter's lock.
    """
    found = [0] * len(wanted)
    for start in range(0, end, _BLOCK):
        stop = min(end, start + _BLOCK)
        for number, one in enumerate(wanted):
            found[number] += text.count(one, start, stop + len(one) - 1)
        if stop < end:
            give_way()
    return found


def _parse_with_literals(text: bytes, limits: Limits) -> Any:
    _check_colons(text, limits)
    try:
        if len(text) > _LARGE:
            numbers = _Numbers()
            value = json.loads(
                text.decode(),
                object_pairs_hook=_unique,
                parse_float=numbers.finite,
                parse_int=numbers.whole,
                parse_constant=numbers.literal,
            )
        else:
            value = json.loads(
                text.decode(), object_pairs_hook=_unique, parse_float=_finite
            )
        if b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise NestedTooDeep(limits.max_json_depth) from None
    except UnicodeEncodeError:
        raise malformed_json("half of a surrogate pair in a string") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, huge integers
        # The rest of that message is advice to programmers.
        raise malformed_json(str(error).partition("; use sys.")[0]) from None
    return value


def _finite(text: str) -> float:
    """Return a float. Refuse 1e999, as orjson does, instead of returning infinity."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"number {text[:40]} is infinity when parsed as double")
    return value


class _Numbers:
    """Read the numbers of a large text, and let other threads run between them.

    The C parser itself lets no thread run for seconds, nor do compiled functions.
    """

    def __init__(self) -> None:
        self._read = 0

    def finite(self, text: str) -> float:
        self._pause()
        return _finite(text)

    def whole(self, text: str) -> int:
        self._pause()
        return int(text)

    def literal(self, text: str) -> float:
        self._pause()
        return _LITERALS[text]

    def _pause(self) -> None:
        self._read += 1
        if self._read % _PAUSE_AFTER == 0:
            give_way()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RepeatedKey(key)
            seen.add(key)
    return found


def _count_usual_keys(document: dict[str, Any]) -> int:
    """Return the keys of an ordinary request."""
    keys = len(document)
    inputs = document.get("inputs")
    if type(inputs) is list:
        for item in inputs:  # `_count_keys_of`, inlined
            if type(item) is dict:
                keys += len(item)
                parameters = item.get("parameters")
                if type(parameters) is dict:
                    keys += len(parameters)
    else:
        keys += _count_keys_of(inputs)
    if "outputs" in document:
        keys += _count_keys_of(document["outputs"])
    parameters = document.get("parameters")
    return keys + len(parameters) if type(parameters) is dict else keys


def _count_keys_of(items: object) -> int:
    keys = 0
    if type(items) is list:
        for item in items:
            if type(item) is dict:
                keys += len(item)
                parameters = item.get("parameters")
                if type(parameters) is dict:
                    keys += len(parameters)
    elif type(items) is dict:
        keys = len(items)
    return keys


def _refuse_repeated_keys(
    text: bytes, document: object, keys: int, limits: Limits
) -> None:
    """Count the keys of the text exactly; name one of them if there are too many.

    `keys` are the usual keys of a document. Takes time in proportion to the text, and
    about as much memory.
    """
    written = _keys_in(text)
    if written <= keys:
        return
    _check_keys(written, limits)
    reserve(_WRITTEN * len(text))
    ensure_room(_WRITTEN * len(text))
    try:
        read = _keys_in(orjson.dumps(document))
    except orjson.JSONEncodeError:
        raise NestedTooDeep(limits.max_json_depth) from None
    if written > read:
        _parse_with_literals(text, limits)


def _check_colons(text: bytes, limits: Limits) -> None:
    """Refuse a JSON text of too many keys before it is parsed."""
    if _count(text, _COLONS, len(text))[0] > limits.max_document_keys:
        _check_keys(_keys_in(text), limits)


def _check_keys(keys: int, limits: Limits) -> None:
    if keys > limits.max_document_keys:
        most = limits.max_document_keys
        msg = f"the document has {keys} keys; at most {most} are allowed"
        raise InvalidRequest(msg)


def _keys_in(text: bytes) -> int:
    """Return the colons of a valid JSON text that are in no string."""
    if b"\\" in text:  # quotation marks may be escaped
        text = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    keys, within = 0, False
    for start in range(0, len(text), _BLOCK):
        size = min(_BLOCK, len(text) - start)
        block = np.frombuffer(text, np.uint8, size, start)
        in_string = np.logical_xor.accumulate(block == _QUOTE)
        if within:
            in_string = ~in_string
        keys += int(np.count_nonzero((block == _COLON) & ~in_string))
        within = bool(in_string[-1])
    return keys


def may_hold_booleans(text: bytes, inputs: list[Any] | dict[str, Any]) -> bool:
    """Return whether a boolean may stand in the values of the inputs.

    Between a key and the next quotation mark a list of numbers contains neither a ``u``
    nor an ``s``, which ``true`` and ``false`` do. Returns True if the text does not
    decide.
    """
    if len(text) < _SMALL or len(inputs) > _SMALL:
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


def check_json_size(size: int, limits: Limits) -> None:
    if size > limits.max_json_bytes:
        msg = (
            f"request JSON size of {size} bytes exceeds the maximum allowed input size "
            f"of {limits.max_json_bytes} bytes for JSON; send large tensors as binary "
            "data, msgpack or .npy"
        )
        raise BodyTooLarge(msg)
