"""The rules of the inference document, and the words for breaking them.

Covers: app/codec/inputs.py, app/codec/shapes.py, app/codec/request_options.py.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgpack
import numpy as np
import pytest

from app.codec import Encoding, NanPolicy
from app.codec.shapes import count_elements
from app.errors import InvalidRequest, InvalidTensor, RequestError, row_of
from app.limits import DEFAULT_LIMITS
from tests.app.codec import samples
from tests.app.codec.samples import Body

TWO = (("A", "FP32", (-1, 2)), ("B", "INT32", (-1, 2)))


def entry(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": "x",
        "shape": [2],
        "datatype": "FP32",
        "data": [1.5, 2],
    }
    found.update(changes)
    return {key: value for key, value in found.items() if value is not ...}


def request(document: Any, codec: Any = None) -> Any:
    """What JSON and msgpack make of a document, which must be the same."""
    codec = codec or samples.codec()
    outcomes = []
    for body in (json.dumps(document).encode(), msgpack.packb(document)):
        try:
            outcomes.append(Body(body).decode(codec))
        except RequestError as error:
            outcomes.append(error)
    first, second = outcomes
    assert type(first) is type(second)
    if isinstance(first, RequestError):
        assert str(first) == str(second)
        raise first
    return first


def refusal(document: Any, codec: Any = None) -> str:
    with pytest.raises(RequestError) as caught:
        request(document, codec)
    assert 400 <= row_of(caught.value).status < 500
    return str(caught.value)


def of_inputs(*inputs: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": list(inputs), **more}


def test_plain_request() -> None:
    got = request(of_inputs(entry(), id="7"))
    assert got.id == "7"
    assert got.outputs is None
    assert got.rows == 1
    assert got.timeout is None
    assert got.inputs["x"].numpy().tolist() == [1.5, 2.0]


@pytest.mark.parametrize("document", [[], 5, "x", None])
def test_not_an_object(document: Any) -> None:
    body = Body(json.dumps(document).encode(), {"content-type": b"application/json"})
    with pytest.raises(InvalidRequest, match="expected an inference request"):
        body.decode(samples.codec())


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "'inputs' is missing"),
        ({"inputs": 5}, "'inputs' is 5"),
        ({"inputs": [5]}, "an input must be an object, got 5"),
        (of_inputs(entry(name=5)), "'name' of an input must be a string, got 5"),
        (of_inputs(entry(name=...)), "'name' of an input must be a string, got null"),
        (of_inputs(entry(name=["x"])), "'name' of an input must be a string"),
        (
            of_inputs(entry(name="q")),
            "unexpected inference input 'q' for model 'm'. Expected input(s) ['x'].",
        ),
        (of_inputs(entry(), entry()), "input 'x' already exists in request"),
        (
            of_inputs(entry(datatype="INT64")),
            "inference input 'x' data-type is 'INT64', but model 'm' expects 'FP32'",
        ),
        (of_inputs(entry(datatype=...)), "data-type is null"),
        (of_inputs(entry(datatype=[1])), "data-type is a list"),
        (of_inputs(entry(shape=...)), "'shape' of input 'x' is missing"),
        (of_inputs(entry(shape=2)), "'shape' of input 'x' is 2"),
        (of_inputs(entry(shape=["2"])), "attempt to access JSON non-unsigned-integer"),
        (of_inputs(entry(shape=[2.0])), "as unsigned-integer"),
        (of_inputs(entry(shape=[True])), "input 'x' has dimension true"),
        (of_inputs(entry(shape=[-1])), "input 'x' has dimension -1"),
        (
            of_inputs(entry(shape=[2**62])),
            "causes total element count to exceed maximum size of 2147483648",
        ),
        (of_inputs(entry(shape=[0, 2**40])), "causes total element count to exceed"),
        (of_inputs(entry(shape=[2**40, 0])), "causes total element count to exceed"),
        (of_inputs(entry(shape=[2**20] * 32)), "causes total element count to exceed"),
        (of_inputs(entry(shape=[1] * 1000)), "has 1000 dimensions; at most 32"),
        (
            of_inputs(entry(shape=[1, 8])),
            "unexpected shape for input 'x' for model 'm'. Expected [-1], got [1,8].",
        ),
        (of_inputs(entry(shape=[3])), "the shape holds 3 elements, 'data' has 2"),
        (
            of_inputs(entry(data=...)),
            "Input must set only one of the following fields:",
        ),
        (of_inputs(entry(data="abc")), "'data' of input 'x' must be a list"),
        (of_inputs(entry(data=5)), "'data' of input 'x' must be a list"),
        (of_inputs(entry(data={"a": 1})), "'data' of input 'x' must be a list"),
        (of_inputs(entry(data=[1, "2"])), "element 1 of input 'x' is the string '2'"),
        (
            of_inputs(entry(data=[1, True])),
            "element 1 of input 'x' is the boolean true",
        ),
        (of_inputs(entry(data=[1, [2]])), "element 1 of input 'x' is a list"),
        (
            of_inputs(entry(data=[[1, 2, 3]])),
            "the shape holds 2 elements, 'data' has 3",
        ),
        (of_inputs(entry(data=[[1, "2"]])), "element 1 of input 'x' is the string '2'"),
        (
            of_inputs(entry(parameters=5)),
            "'parameters' of input 'x' must be an object, got 5",
        ),
        (
            of_inputs(entry(parameters={"binary_data_size": 8})),
            "Input must set only one of the following fields:",
        ),
        (
            of_inputs(entry(data=..., parameters={"binary_data_size": 8})),
            "unexpected size for input 'x', expecting 8 additional bytes for model 'm'",
        ),
        (
            of_inputs(entry(data=..., parameters={"binary_data_size": -8})),
            "'binary_data_size' of input 'x' must be a non-negative integer, got -8",
        ),
        (
            of_inputs(entry(parameters={"shared_memory_region": "r"})),
            "Input must set only one of the following fields",
        ),
        (
            of_inputs(
                entry(),
                outputs=[{"name": "y", "parameters": {"shared_memory_region": 5}}],
            ),
            "'shared_memory_region' of output 'y' must be a string, got 5",
        ),
        (
            of_inputs(
                entry(),
                outputs=[{"name": "y", "parameters": {"shared_memory_region": "r"}}],
            ),
            "'shared_memory_byte_size' of output 'y' must be a number of bytes",
        ),
        (
            of_inputs(
                entry(),
                outputs=[
                    {
                        "name": "y",
                        "parameters": {
                            "shared_memory_region": "r",
                            "shared_memory_byte_size": 8,
                            "binary_data": True,
                        },
                    }
                ],
            ),
            "cannot set both 'shared_memory_region' and 'binary_data'",
        ),
        (of_inputs(entry(), id=5), "'id' must be a string, got 5"),
        (of_inputs(entry(), parameters=[1]), "must be an object, got a list"),
        (
            of_inputs(entry(), parameters={"triton_x": 1}),
            "parameter keys starting with 'triton_' are reserved",
        ),
        (
            of_inputs(entry(), parameters={"a": [1]}),
            "should be either 'int', 'bool', 'double' or 'string', got a list",
        ),
        (
            of_inputs(entry(), parameters={"timeout": -1}),
            "'timeout' must be an integer",
        ),
        (
            of_inputs(entry(), parameters={"timeout": "9"}),
            "'timeout' must be an integer",
        ),
        (
            of_inputs(entry(), parameters={"binary_data_output": 1}),
            "'binary_data_output' must be true or false, got 1",
        ),
        (of_inputs(entry(), parameters={"nan": "x"}), "'nan' must be one of 'literal'"),
        (of_inputs(entry(), outputs={}), "'outputs' must be a list, got an object"),
        (of_inputs(entry(), outputs=[5]), "unexpected inference output 5 for"),
        (
            of_inputs(entry(), outputs=[{"name": "q"}]),
            "unexpected inference output 'q'",
        ),
        (
            of_inputs(entry(), outputs=[{"name": "y"}, {"name": "y"}]),
            "output 'y' already exists in request",
        ),
        (
            of_inputs(entry(), outputs=[{"name": "y", "parameters": 5}]),
            "'parameters' of output 'y' must be an object, got 5",
        ),
        (
            of_inputs(
                entry(), outputs=[{"name": "y", "parameters": {"binary_data": 1}}]
            ),
            "'binary_data' must be true or false",
        ),
        (
            of_inputs(
                entry(), outputs=[{"name": "y", "parameters": {"classification": -1}}]
            ),
            "'classification' of output 'y' must be a number of classes, got -1",
        ),
        (of_inputs(entry(), outputs=["y"] * 2000), "at most 1024"),
        # JSON.stringify writes typed arrays so.
        ({"inputs": {"x": {"0": 1.5, "1": 2}}}, "input 'x' is an object; expected n"),
    ],
)
def test_refusals(document: Any, words: str) -> None:
    assert words in refusal(document)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "the boolean true"),
        ("AAAA", "the string 'AAAA'"),
        (5, "5"),
    ],
)
def test_values_that_are_no_lists_are_named(value: object, words: str) -> None:
    codec = samples.codec(samples.model(shape=(-1, 4)))
    expected = f"input 'x' is {words}; expected nested lists [-1,4]"
    assert refusal({"inputs": {"x": value}}, codec) == expected


DEEP: Any = json.loads("[" * 900 + "]" * 900)
OF_OUTPUTS = ("binary_data", "classification", "shared_memory_region")


@pytest.mark.parametrize(
    "document",
    [
        *(of_inputs(entry(**{k: DEEP})) for k in ("name", "shape", "datatype", "data")),
        of_inputs(entry(shape=[DEEP])),
        of_inputs(entry(data=..., parameters={"binary_data_size": DEEP})),
        of_inputs(entry(), id=DEEP),
        of_inputs(entry(), outputs=[DEEP]),
        *(
            of_inputs(entry(), outputs=[{"name": "y", "parameters": {k: DEEP}}])
            for k in OF_OUTPUTS
        ),
    ],
)
def test_no_nesting_is_too_deep_for_its_refusal(document: Any) -> None:
    body = Body(json.dumps(document).encode())
    with pytest.raises(RequestError, match=r"list|nest"):
        body.decode(samples.codec())


@pytest.mark.parametrize("wrong", ["", False, [], {}, 0.0])
@pytest.mark.parametrize("name", ["timeout", "priority", "classification"])
def test_what_counts_as_false_is_no_number(name: str, wrong: object) -> None:
    parameters = {name: wrong}
    document = of_inputs(entry(), parameters=parameters)
    if name == "classification":
        document = of_inputs(entry(), outputs=[{"name": "y", "parameters": parameters}])
    assert name in refusal(document)


@pytest.mark.parametrize("name", ["nan", "missing", "timeout"])
def test_a_long_value_is_cut_in_its_refusal(name: str) -> None:
    document = of_inputs(entry(), parameters={name: "x" * 100_000})
    assert len(refusal(document)) < 300


def test_missing_inputs() -> None:
    codec = samples.codec(samples.model(inputs=TWO))
    a = entry(name="A", shape=[1, 2])
    assert refusal(of_inputs(a), codec) == (
        "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but "
        "missing required input(s) ['B']. Please provide all required input(s)."
    )
    assert "Got input(s) [], but missing required input(s) ['A','B']." in refusal(
        {"inputs": []}, codec
    )
    assert "expected 2 inputs but got 0" in refusal({"inputs": {}}, codec)
    assert "expected 2 inputs but got 0" in refusal({"inputs": []}, codec)


def test_several_inputs() -> None:
    codec = samples.codec(samples.model(inputs=TWO, max_batch_size=4))
    a = entry(name="A", shape=[1, 2])
    b = entry(name="B", shape=[1, 2], datatype="INT32", data=[3, -4])
    got = request(of_inputs(b, a), codec)
    assert got.inputs["A"].numpy().tolist() == [[1.5, 2.0]]
    assert got.inputs["B"].numpy().tolist() == [[3, -4]]
    assert got.rows == 1
    c = entry(name="B", shape=[2, 2], datatype="INT32", data=[1, 2, 3, 4])
    assert refusal(of_inputs(a, c), codec) == (
        "input 'B' batch size does not match other inputs for 'm': it has 2 rows, "
        "'A' has 1"
    )


def test_batch_limit() -> None:
    spec = samples.model("FP32", (-1, 2), max_batch_size=4, max_rows=8)
    codec = samples.codec(spec)
    nine = entry(shape=[9, 2], data=[1.0] * 18)
    assert "inference request batch-size must be <= 8 for 'm'" in refusal(
        of_inputs(nine), codec
    )
    eight = entry(shape=[8, 2], data=[1.0] * 16)
    assert request(of_inputs(eight), codec).rows == 8


def test_what_a_shape_taught_is_not_taken_for_another() -> None:
    """1, 1.0 and true are one key of a dictionary and still are not one dimension."""
    codec = samples.codec(samples.model("FP32", (-1, -1)))
    assert request(of_inputs(entry(shape=[1, 2])), codec)
    for dim in (1.0, True):
        assert "as unsigned-integer" in refusal(of_inputs(entry(shape=[dim, 2])), codec)


def test_many_shapes_do_not_pile_up() -> None:
    codec = samples.codec()
    for count in range(300):
        got = request(of_inputs(entry(shape=[count], data=[0.5] * count)), codec)
        assert got.inputs["x"].shape == (count,)


@pytest.mark.parametrize(
    ("shape", "data", "fits"),
    [
        ([], 5, True),
        ([], [5], True),
        ([0], [], True),
        ([2, 0], [[], []], True),
        ([2, 0], [], True),
        ([0, 2], [], True),
        ([0, 2], [[]], False),
        ([2, 2], [[1, 2], [3, 4]], True),
        ([2, 2], [1, 2, 3, 4], True),
        ([2, 2], [[1, 2], [3]], False),
        ([2, 2], [[1, 2], 3], False),
        ([2, 2], [[1, 2, 3, 4]], False),
        ([1, 2, 2], [[[1, 2], [3, 4]]], True),
        ([2, 1, 2], [[[1, 2], [3, 4]]], False),
    ],
)
def test_nesting_has_to_be_the_shape(shape: list[int], data: Any, fits: bool) -> None:
    codec = samples.codec(samples.model("FP32", None))
    document = of_inputs(entry(shape=shape, data=data))
    if fits:
        assert request(document, codec).inputs["x"].shape == tuple(shape)
    else:
        text = refusal(document, codec)
        uneven = data in ([[1, 2], [3]], [[1, 2], 3])
        wrong = "Shape does not match true shape of 'data' field"
        assert ("are nested unevenly" if uneven else wrong) in text


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([], [[5]]),
        ([1, 1], [[[[5]]]]),
        ([4], [[1, 2], [3, 4]]),
        ([2, 2], [[[1], [2]], [[3], [4]]]),
        ([2, 3], [[[1, 2]], [3, [[4], 5]], 6]),
        ([0], [[[]], []]),
    ],
)
def test_data_nested_deeper_than_its_shape_is_in_order(
    shape: list[int], data: Any
) -> None:
    codec = samples.codec(samples.model("FP32", None))
    got = request(of_inputs(entry(shape=shape, data=data)), codec).inputs["x"].numpy()
    assert got.shape == tuple(shape)
    first = 5 if got.size == 1 else 1
    assert got.reshape(-1).tolist() == list(range(first, first + got.size))


def test_a_hundred_brackets_around_one_number() -> None:
    data: Any = "hello"
    for _ in range(100):
        data = [data]
    codec = samples.codec(samples.model("BYTES", None))
    document = of_inputs(entry(datatype="BYTES", shape=[1, 1], data=data))
    assert request(document, codec).inputs["x"].numpy().tolist() == [[b"hello"]]


def test_data_that_is_nested_too_deep() -> None:
    for depth in (101, 500):  # old msgpack writes 511 at most
        data: Any = 1
        for _ in range(depth):
            data = [data]
        for document in (
            of_inputs(entry(shape=[1], data=data)),
            {"inputs": {"x": data}},
            of_inputs(entry(), unknown=data),
        ):
            text = refusal(document)
            assert text == "JSON nesting depth exceeds maximum allowed limit (100)"


def test_unknown_keys_are_not_read() -> None:
    got = request(of_inputs(entry(extra={"a": [1]}), something=[{"b": {}}]))
    assert got.inputs["x"].numpy().tolist() == [1.5, 2.0]


def test_requested_outputs() -> None:
    codec = samples.codec(samples.model(out=(*TWO, ("C", "BYTES", (-1,)))))
    got = request(of_inputs(entry(), outputs=[{"name": "C"}, "A"]), codec)
    assert got.outputs == ("C", "A")
    assert request(of_inputs(entry(), outputs=[]), codec).outputs is None


def test_parameters() -> None:
    parameters = {"timeout": 2_500_000, "mine": "yes", "n": 1.5, "priority": 3}
    got = request(of_inputs(entry(), parameters=parameters))
    assert got.timeout == 2.5
    assert got.parameters == parameters
    assert request(of_inputs(entry(), parameters={"timeout": 0})).timeout is None


@pytest.mark.parametrize("policy", list(NanPolicy))
def test_nan_policy(policy: NanPolicy) -> None:
    document = of_inputs(entry(data=[1, None]), parameters={"nan": policy.value})
    assert np.isnan(request(document).inputs["x"].numpy()[1])
    document["parameters"]["missing"] = "refuse"
    assert "element 1 of input 'x' is null" in refusal(document)
    assert "'missing'" in refusal(document)
    document["parameters"]["missing"] = "zero"
    assert "'missing' must be one of 'nan', 'refuse'" in refusal(document)
    document = of_inputs(entry(), parameters={"nan": policy.value})
    assert request(document).nan is policy


@pytest.mark.parametrize(
    ("expected", "value", "shape"),
    [
        ((-1, 3), [1, 2, 3], (1, 3)),
        ((-1, 3), [[1, 2, 3], [4, 5, 6]], (2, 3)),
        ((1, 1, 3), [1, 2, 3], (1, 1, 3)),
        ((-1,), 5, (1,)),
        ((-1, 1), 5, (1, 1)),
        ((-1, 1), [1, 2], (2, 1)),
        ((-1, 1), [1], (1, 1)),
        ((3, 1), [1, 2, 3], (3, 1)),
        ((-1, -1), [1, 2], (1, 2)),
        ((), 5, ()),
        ((-1,), [], (0,)),
        ((-1, 3), [], (0, 3)),
        ((-1, -1), [[], []], (2, 0)),
        (None, [[1], [2]], (2, 1)),
        (None, 5, ()),
        ((-1, 3), [1, 2], None),
        ((2, 3), [1, 2, 3], None),
        ((-1, 3), [[1, 2, 3], [4, 5]], None),
        ((-1, 3), [[[1, 2, 3]]], None),
        ((-1, 2), "ab", None),
        ((-1, 2), {"a": 1}, None),
        ((3,), [1, True, 3], None),
    ],
)
def test_shorthand(
    expected: tuple[int, ...] | None, value: Any, shape: tuple[int, ...] | None
) -> None:
    codec = samples.codec(samples.model("FP32", expected))
    document = {"inputs": {"x": value}}
    if shape is None:
        with pytest.raises(InvalidTensor):
            request(document, codec)
    else:
        tensor = request(document, codec).inputs["x"]
        assert tensor.shape == shape
        assert tensor.numpy().ravel().tolist() == np.ravel(value).tolist()


def test_shorthand_of_a_gap() -> None:
    codec = samples.codec(samples.model("FP32", (-1,)))
    document: dict[str, Any] = {"inputs": {"x": None}}
    assert np.isnan(request(document, codec).inputs["x"].numpy()).tolist() == [True]
    document["parameters"] = {"missing": "refuse"}
    assert "element 0 of input 'x' is null" in refusal(document, codec)


def test_shorthand_of_a_long_list() -> None:
    codec = samples.codec(samples.model("FP32", (-1, 784)))
    values = [[0.5] * 784] * 3
    assert request({"inputs": {"x": values}}, codec).inputs["x"].shape == (3, 784)
    values[1] = [*values[1][:-1], True]
    assert "element 1567 of input 'x' is the boolean true" in refusal(
        {"inputs": {"x": values}}, codec
    )


def test_shorthand_of_an_unknown_input() -> None:
    assert "unexpected inference input 'q'" in refusal({"inputs": {"q": [1]}})


def test_base64_of_numbers_has_to_be_the_right_bytes() -> None:
    parameters = {"content_type": "base64"}
    document = of_inputs(entry(data="AAAAAAAA", parameters=parameters))
    assert "Expected 8, got 6" in refusal(document)
    document = of_inputs(entry(data="AAA", parameters=parameters))
    assert "is not valid base64" in refusal(document)


def test_no_data_is_enough_for_no_elements() -> None:
    got = request(of_inputs(entry(shape=[0], data=...)))
    assert got.inputs["x"].shape == (0,)


def test_bool_bytes_other_than_0_and_1() -> None:
    codec = samples.codec(samples.model("BOOL"))
    document = of_inputs(entry(datatype="BOOL", data=b"\x01\x02"))
    with pytest.raises(InvalidTensor, match="a byte with value 2"):
        Body(msgpack.packb(document)).decode(codec)


def test_reply_in_the_encoding_that_came() -> None:
    codec = samples.codec()
    document = of_inputs(entry())
    text, packed = json.dumps(document).encode(), msgpack.packb(document)
    assert Body(text).decode(codec).encoding is Encoding.JSON
    assert Body(packed).decode(codec).encoding is Encoding.MSGPACK
    assert Body(text).decode(codec, b"application/x-npy").encoding is Encoding.NPY


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ([0, 3, 2147483647, 2147483647], "maximum size of 2147483648"),
        ([2147483647, 0], "2147483647 rows without elements; at most 65536"),
        ([1, 1 << 16, 2, 0], "131072 rows without elements; at most 65536"),
    ],
)
def test_dimensions_of_zero_hide_no_others(shape: list[int], why: str) -> None:
    """They would take no memory, but time, or numpy refuses them."""
    with pytest.raises(InvalidTensor, match=re.escape(why)):
        count_elements("x", shape, DEFAULT_LIMITS)
    assert count_elements("x", [0, 3, 1024, 1024], DEFAULT_LIMITS) == 0
    assert count_elements("x", [1 << 16, 0], DEFAULT_LIMITS) == 0
    assert count_elements("x", [2, 3], DEFAULT_LIMITS) == 6
