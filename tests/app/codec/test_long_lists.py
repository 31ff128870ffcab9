"""Long lists of a document, read in blocks: what a parser makes of the whole.

Covers: app/codec/json_lists.py.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.codec import ModelCodec
from app.codec.json_lists import LARGE, listed, parse_large
from app.codec.json_text import parse_json
from app.codec.number_lists import LongList
from app.errors import BodyTooLarge, InvalidRequest, InvalidTensor, MalformedBody
from app.limits import DEFAULT_LIMITS
from app.spec import ModelSpec, TensorSpec
from engine import Tensor
from tests.app.codec import samples


def padded(data: str, **more: object) -> bytes:
    """A document with these data that is long enough to be read in blocks."""
    return (json.dumps(more)[:-1] + ("," if more else "") + f'"data":{data}}}').encode()


def long_list(value: object) -> LongList:
    text = json.dumps(value).encode()
    return LongList(text, 0, len(text), partial(parse_json, limits=DEFAULT_LIMITS))


@pytest.mark.parametrize(
    "shape", [(20_000,), (7, 3000), (3000, 7), (20_000, 1), (1, 20_000), (5, 7, 600)]
)
def test_a_long_list_is_what_a_parser_makes_of_it(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    for values in (array.tolist(), (array / 7).tolist(), array.astype(str).tolist()):
        found = long_list(values)
        assert (found.count, found.depth, found.dims) == (array.size, len(shape), shape)
        assert found.values() == values
        document = {"a": {"x": values}, "data": values, "b": ["]", 1]}
        text = json.dumps(document, indent=1 if array.size % 3 else None).encode()
        read = parse_large(text, DEFAULT_LIMITS)
        assert type(read["data"]) is LongList
        assert listed(read) == document


def test_strings_with_brackets_quotes_and_escapes() -> None:
    odd = ["[", "]", '"', "\\", '\\"', '],["', "{:}", "\n\u00e9", ",", ""]
    values = [odd[i % 10] * (1 + i % 3) for i in range(60_000)]
    document = {"id": '[\\",', "inputs": [{"name": "]", "data": values}]}
    read = parse_large(json.dumps(document).encode(), DEFAULT_LIMITS)
    assert type(read["inputs"][0]["data"]) is LongList
    assert listed(read) == document


MANY = ",".join(["1.5"] * 40_000)


@pytest.mark.parametrize(
    "data",
    [
        f"[{MANY},]",
        f"[,{MANY}]",
        f"[{MANY},,1]",
        f"[{MANY}],1]",
        f"[{MANY}] 1",
        f"[{MANY}][1]",
        f"[[{MANY}],[1]",
        f"[1[,2],{MANY}]",
        f"[[1]2,{MANY}]",
        f"[{MANY} 5]",
        f"[{MANY},x]",
        f"[{MANY},[]]",
        f"[[{MANY}],[1,[2]",
        f'[{MANY},"a]',
    ],
)
def test_a_long_list_that_is_none_is_refused(data: str) -> None:
    text = padded(data)
    if "[]" not in data:
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)
    with pytest.raises((MalformedBody, InvalidRequest)):
        listed(parse_large(text, DEFAULT_LIMITS))


def test_words_for_numbers_in_a_long_list() -> None:
    text = padded(f"[{MANY},NaN,-Infinity,{MANY}]")
    values = listed(parse_large(text, DEFAULT_LIMITS))["data"]
    assert len(values) == 80_002
    assert math.isnan(values[40_000])
    assert values[40_001] == -math.inf


@given(st.binary(max_size=60), st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_what_a_parser_refuses_is_refused(noise: bytes, at: int) -> None:
    text = (
        b'{"data":['
        + MANY[: 4 * 18_000 + at].encode()
        + noise
        + b","
        + (MANY[: 4 * 9_000].encode() + b"1]}")
    )
    try:
        expected = parse_json(text, DEFAULT_LIMITS)
    except (MalformedBody, InvalidRequest):
        expected = None
    try:
        found = listed(parse_large(text, DEFAULT_LIMITS))
    except (MalformedBody, InvalidRequest):
        found = None
    if expected is None or found is not None:
        assert repr(found) == repr(expected)


def decoded(values: list[Any], shape: list[int], datatype: str) -> Tensor:
    codec = ModelCodec(
        ModelSpec("m", "1", (TensorSpec.make("x", datatype, (-1,) * len(shape)),), ())
    )
    item = {"name": "x", "shape": shape, "datatype": datatype, "data": values}
    body = json.dumps({"inputs": [item]}).encode()
    assert len(body) > LARGE
    return codec.decode(None, None, None, [body]).inputs["x"]


NUMBERS = np.arange(1 << 18).reshape(-1, 64)


@pytest.mark.parametrize("values", [NUMBERS.tolist(), NUMBERS.reshape(-1).tolist()])
def test_a_long_list_is_a_tensor(values: list[Any]) -> None:
    for datatype in ("INT32", "FP32", "FP64", "BF16"):
        tensor = decoded(values, list(NUMBERS.shape), datatype)
        assert tensor.shape == NUMBERS.shape
        if datatype != "BF16":
            assert np.array_equal(tensor.numpy(), NUMBERS)


def test_long_lists_of_strings_and_booleans_are_tensors() -> None:
    texts = [f"ä{i}" for i in range(100_000)]
    tensor = decoded(texts, [100_000], "BYTES")
    assert tensor.numpy().tolist() == [text.encode() for text in texts]
    flags = [i % 3 == 0 for i in range(200_000)]
    assert decoded(flags, [2, 100_000], "BOOL").numpy().reshape(-1).tolist() == flags


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (131_072, "x", "element 131072 of input 'x' is the string 'x'"),
        (200_000, True, "element 200000 of input 'x' is the boolean true"),
        (262_143, 0.5, "element 262143 of input 'x' is 0.5, not an integer"),
        (9, 1 << 40, "element 9 of input 'x' is 1099511627776, which is not in"),
    ],
)
def test_what_does_not_fit_is_said_with_its_index(
    place: int, value: object, why: str
) -> None:
    values: list[Any] = NUMBERS.reshape(-1).tolist()
    values[place] = value
    with pytest.raises(InvalidTensor, match=why):
        decoded(values, [1 << 18], "INT32")


def test_another_shape_is_refused() -> None:
    uneven: list[Any] = NUMBERS.tolist()
    uneven[7] = uneven[7][:-1]
    for values, shape in (
        (NUMBERS.tolist(), [64, 1 << 12]),
        (NUMBERS.tolist(), [1 << 12, 65]),
        (uneven, [1 << 12, 64]),
        ([1, [2], *range(1 << 18)], [(1 << 18) + 2]),
    ):
        with pytest.raises(InvalidTensor):
            decoded(values, shape, "INT32")


def test_strings_are_bounded_before_they_are_made() -> None:
    limits = replace(DEFAULT_LIMITS, max_strings=1000, max_document_keys=1000)
    codec = ModelCodec(
        ModelSpec("m", "1", (TensorSpec.make("x", "BYTES", (-1,)),), ()), limits
    )
    item: dict[str, Any] = {"name": "x", "shape": [1001], "datatype": "BYTES"}
    for data in (["a"] * 1001, ["a" * 1000] * 1001, b"\0" * 4004):
        if isinstance(data, bytes):
            body = msgpack.packb({"inputs": [{**item, "data": data}]})
        else:
            body = json.dumps({"inputs": [{**item, "data": data}]}).encode()
        with pytest.raises(InvalidTensor, match="at most 1000 are allowed"):
            codec.decode(None, None, None, [body])
    many = json.dumps({"inputs": [{**item, "data": ["a"] * 300_000}]}).encode()
    with pytest.raises(BodyTooLarge, match="more than 1000 strings"):
        codec.decode(None, None, None, [many])


@pytest.mark.parametrize("size", [(100, 7), (60_000, 7), (1, 300_000), (300_000, 1)])
def test_leading_dimensions_may_be_missing_at_any_size(size: tuple[int, int]) -> None:
    tensor = TensorSpec.make("x", "FP32", (-1, -1, -1))
    codec = ModelCodec(ModelSpec("m", "1", (tensor,), ()))
    values = np.arange(size[0] * size[1], dtype=np.float32).reshape(size)
    body = json.dumps({"inputs": {"x": values.tolist()}}).encode()
    read = codec.decode(None, None, None, [body]).inputs["x"]
    assert read.shape == (1, *size)
    assert np.array_equal(read.numpy()[0], values)


def test_names_of_outputs_may_take_many_bytes() -> None:
    names = [f"{number:0200}" for number in range(1000)]
    spec = samples.model(out=tuple((name, "FP32", (-1,)) for name in names))
    document = {"inputs": {"x": [1.0] * 200_000}, "outputs": names}
    body = json.dumps(document).encode()
    assert len(body) > LARGE
    request = ModelCodec(spec, DEFAULT_LIMITS).decode(None, None, None, [body])
    assert request.outputs == tuple(names)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"id": [1] * 300_000}, "'id' must be a string, got a list"),
        ({"outputs": [1] * 300_000}, "'outputs' has 300000 entries"),
        ({"parameters": {"timeout": [1] * 300_000}}, "'string', got a list"),
    ],
)
def test_a_long_list_that_is_no_tensor_is_called_a_list(
    more: dict[str, Any], words: str
) -> None:
    body = json.dumps({"inputs": {"x": [1.0]}, **more}).encode()
    with pytest.raises(InvalidRequest) as caught:
        samples.codec().decode(None, None, None, [body])
    assert words in str(caught.value)
