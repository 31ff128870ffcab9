"""JSON text: what orjson refuses, what it lets pass, and how deep it may go."""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.codec.json_text import may_hold_booleans, parse_json
from app.errors import BodyTooLarge, InvalidRequest, MalformedBody
from app.limits import DEFAULT_LIMITS, Limits


def parse(text: str | bytes, limits: Limits = DEFAULT_LIMITS) -> Any:
    return parse_json(text.encode() if isinstance(text, str) else text, limits)


def test_literals() -> None:
    value = parse('{"a": [NaN, 1, -Infinity, Infinity]}')["a"]
    assert math.isnan(value[0])
    assert value[1:] == [1, -math.inf, math.inf]


def test_integers_are_exact() -> None:
    assert parse(f"[{2**64 - 1},{-(2**63)}]") == [2**64 - 1, -(2**63)]
    assert parse(f'{{"a":[{2**64 - 1},NaN]}}')["a"][0] == 2**64 - 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"inputs"',
        '{"inputs": [1, 2',
        '{"a": NaN',
        '{"a": nan}',
        '{"a": 1e999}',
        '{"a": [NaN, 1e999]}',
        '{"a": 01}',
        '{"a": "\\ud800"}',
        b'{"a": "\xff"}',
        b'{"a": "\xff", "b": NaN}',
        "{'a': 1}",
        '{"a": 1} x',
        '{"a": ' + "9" * 5000 + ", NaN}",
        "\ufeff{}",
    ],
)
def test_what_is_no_json(text: str | bytes) -> None:
    with pytest.raises(MalformedBody, match="failed to parse the request JSON buffer"):
        parse(text)


@pytest.mark.parametrize("depth", [1025, 100_000])
@pytest.mark.parametrize("literal", ["1", "NaN"])
def test_deep_nesting(depth: int, literal: str) -> None:
    for text in (
        "[" * depth + literal + "]" * depth,
        '{"a":' * depth + literal + "}" * depth,
        "[" * depth,
    ):
        with pytest.raises((InvalidRequest, MalformedBody)) as caught:
            parse(text)
        if text.endswith(literal + "]" * depth):
            assert "JSON nesting depth exceeds maximum allowed limit (100)" in str(
                caught.value
            )


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"inputs":[],"inputs":[]}',
        '{"inputs":[{"name":"x","data":[1],"data":[2]}]}',
        '{"inputs":[{"name":"a:b","shape":[],"shape":[1]}]}',
        '{"parameters":{"p":1,"p":2},"inputs":{}}',
        '{"inputs":{"x":1,"x":2}}',
        '{"outputs":[{"name":"y","name":"y"}]}',
        '{"outputs":[{"name":"y","parameters":{"binary_data":true,"binary_data":1}}]}',
        '{"other":{"deep":[{"k":1,"k":2}]}}',
        '{"id":"::::","id":"::::"}',
        '{"inputs":{"x":[NaN],"x":[1]}}',
        '{"inputs" : {"x" :[1], "x"  :[1]}}',
    ],
)
def test_repeated_keys(text: str) -> None:
    json.loads(text)  # a parser that sees nothing wrong with it
    with pytest.raises(InvalidRequest, match="occurs twice in one object"):
        parse(text)


names = st.text(st.sampled_from('ab:"\\{}[], \n'), max_size=4)
values = st.recursive(
    st.one_of(st.integers(-9, 9), names, st.booleans()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)
    ),
    max_leaves=8,
)
documents = st.dictionaries(
    st.one_of(names, st.sampled_from(["inputs", "outputs", "parameters"])), values
)


@settings(max_examples=60, deadline=None)
@given(documents)
def test_single_keys_are_never_refused(document: dict[str, Any]) -> None:
    for indent in (None, 1):
        assert parse(json.dumps(document, indent=indent)) == document


def test_large_texts_of_many_lists() -> None:
    limits = Limits(max_document_values=1_000_000)
    padding = " " * (5 << 20)
    assert parse(f'{{"a": [1, 2], {padding} "b": 1}}', limits)["b"] == 1
    with pytest.raises(BodyTooLarge, match="more than 1000000 values"):
        parse("[" + "[]," * 200_000 + "1]" + padding, limits)


def test_large_texts_of_many_keys() -> None:
    keys = ",".join(f'"{n}":1' for n in range(1_001))
    limits = Limits(max_document_keys=1_000)
    small = f'{{"parameters": {{{keys}}}}}'
    assert len(parse(small, limits)["parameters"]) == 1_001
    with pytest.raises(InvalidRequest, match="1002 keys; at most 1000"):
        parse(small + " " * (1 << 20), limits)
    colons = '{"id": "' + '\\":' * 300_000 + '", "parameters": {}}'
    assert parse(colons, limits)["parameters"] == {}


@pytest.mark.parametrize("before", range(2))
def test_large_texts_of_escaped_quotes(before: int) -> None:
    """They are counted in blocks; one that lies in two blocks is counted once."""
    limits = Limits(max_strings=1, max_document_keys=1)
    text = '{"a": ["' + "x" * before + '\\"' * (1 << 20) + '"]}'
    assert len(parse(text, limits)["a"][0]) == before + (1 << 20)
    with pytest.raises(BodyTooLarge, match="more than 1 strings"):
        parse(text.replace("]", ', ""]'), limits)


@pytest.mark.parametrize("number", ["NaN", "1", "1.5", "-Infinity"])
def test_others_work_while_a_large_text_with_literals_is_read(number: str) -> None:
    text = "[" + f"{number}," * 1_000_000 + "NaN]"
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(parse, text)
        turns = 0
        while not read.done():
            turns += 1
            time.sleep(0)
    assert turns > 20  # the parser alone leaves a few, before and after it
    values = read.result()
    assert len(values) == 1_000_001
    assert repr(values[0]) == repr(json.loads(number))


@pytest.mark.parametrize("where", range(3))
@pytest.mark.parametrize("word", ["true", "false"])
def test_booleans_are_found(where: int, word: str) -> None:
    numbers = ["[" + ",".join(["1.5"] * 500) + "]" for _ in range(3)]
    assert not may_hold_booleans(document_text(numbers), [{}, {}, {}])
    numbers[where] = numbers[where][:-1] + f",{word}]"
    assert may_hold_booleans(document_text(numbers), [{}, {}, {}])
    short = {f"i{n}": json.loads(text) for n, text in enumerate(numbers)}
    assert may_hold_booleans(json.dumps({"inputs": short}).encode(), short)
    many = [""] * 1025
    assert may_hold_booleans(json.dumps({"inputs": many}).encode(), many)


def document_text(numbers: list[str]) -> bytes:
    inputs = (f'{{"name":"{n}","data":{data}}}' for n, data in enumerate(numbers))
    return f'{{"inputs":[{",".join(inputs)}],"true":[true]}}'.encode()


def test_small_or_odd_texts_may_hold_booleans() -> None:
    assert may_hold_booleans(b'{"inputs":[]}', [])
    assert may_hold_booleans(b" " * 5000, [{}])
