"""JSON responses: their form, their binary parts, and numbers that JSON lacks.

Covers: app/codec/outputs.py.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from app.codec import ModelCodec
from app.codec.json_lists import LARGE
from app.errors import BodyTooLarge, NotRepresentable
from app.limits import Limits
from engine import Tensor
from tests.app.codec import samples

OUT = (("y", "FP32", (-1,)), ("z", "BYTES", (-1,)), ("n", "FP16", (-1,)))
VALUES = [0.1, math.nan, math.inf, -math.inf, 1e30]


def outputs() -> dict[str, Tensor]:
    strings = np.array([b"a", "ü".encode()], dtype=object)
    return {
        "y": Tensor.from_numpy(np.array(VALUES[:1], np.float32)),
        "z": Tensor.from_numpy(strings),
        "n": Tensor.from_numpy(np.array([], np.float16)),
    }


def respond(
    parameters: Any = None,
    wanted: Any = None,
    accept: bytes | None = None,
    tensors: dict[str, Tensor] | None = None,
    codec: ModelCodec | None = None,
    **more: Any,
) -> tuple[dict[bytes, bytes], Any, bytes]:
    """Headers, JSON and binary part of the response to a request for these outputs."""
    document: dict[str, Any] = {"inputs": {"x": [1]}, **more}
    if parameters is not None:
        document["parameters"] = parameters
    if wanted is not None:
        document["outputs"] = wanted
    codec = codec or samples.codec(samples.model(out=OUT))
    request = codec.decode(None, None, accept, [json.dumps(document).encode()])
    response = codec.encode(request, outputs() if tensors is None else tensors)
    headers = dict(response.headers)
    body = response.body
    length = int(headers.get(b"inference-header-content-length", len(body)))
    return headers, json.loads(body[:length]), body[length:]


def test_form() -> None:
    headers, document, tail = respond(id='1"2')
    assert headers == {
        b"content-type": b"application/json",
        b"content-length": headers[b"content-length"],
    }
    assert tail == b""
    assert list(document) == ["id", "model_name", "model_version", "outputs"]
    assert document == {
        "id": '1"2',
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1], "data": [0.1]},
            {"name": "z", "datatype": "BYTES", "shape": [2], "data": ["a", "ü"]},
            {"name": "n", "datatype": "FP16", "shape": [0], "data": []},
        ],
    }
    assert "id" not in respond()[1]


def test_all_outputs_binary() -> None:
    headers, document, tail = respond({"binary_data_output": True})
    assert headers[b"content-type"] == b"application/octet-stream"
    sizes = [o["parameters"]["binary_data_size"] for o in document["outputs"]]
    assert sizes == [4, 11, 0]
    assert all("data" not in output for output in document["outputs"])
    assert tail == np.float32(0.1).tobytes() + b"\x01\0\0\0a\x02\0\0\0\xc3\xbc"


def test_an_output_says_for_itself() -> None:
    wanted: list[dict[str, Any]] = [
        {"name": "z", "parameters": {"binary_data": False}},
        {"name": "y"},
    ]
    _, document, tail = respond({"binary_data_output": True}, wanted)
    assert [output["name"] for output in document["outputs"]] == ["z", "y"]
    assert document["outputs"][0]["data"] == ["a", "ü"]
    assert tail == np.float32(0.1).tobytes()
    wanted[1]["parameters"] = {"binary_data": True}
    assert respond(None, wanted)[1:] == (document, tail)


def test_only_empty_binary_outputs_leave_it_json() -> None:
    headers, document, tail = respond({"binary_data_output": True}, ["n"])
    assert headers[b"content-type"] == b"application/json"
    assert b"inference-header-content-length" not in headers
    assert document["outputs"][0]["parameters"] == {"binary_data_size": 0}
    assert tail == b""


def test_accept_makes_outputs_binary_but_for_those_that_say_no() -> None:
    accept = b"application/octet-stream"
    _, document, tail = respond(None, ["y", "z"], accept)
    assert len(tail) == 15
    wanted = [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}]
    _, document, tail = respond(None, wanted, accept)
    assert document["outputs"][0]["data"] == [0.1]
    assert len(tail) == 11
    headers, _, _ = respond({"binary_data_output": False}, None, accept)
    assert headers[b"content-type"] == b"application/json"


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (None, ["NaN", "Infinity", "-Infinity"]),
        ("literal", ["NaN", "Infinity", "-Infinity"]),
        ("null", ["null", "null", "null"]),
        ("string", ['"NaN"', '"Infinity"', '"-Infinity"']),
    ],
)
@pytest.mark.parametrize("way", ["parameter", "accept"])
def test_nan_policy(datatype: str, policy: Any, words: list[str], way: str) -> None:
    codec = samples.codec(samples.model(datatype))
    values = [*VALUES[:-1], 1.0] if datatype == "FP16" else VALUES
    array = np.array(values, samples.NUMPY[datatype])
    document: dict[str, Any] = {"inputs": {"x": [1]}}
    accept = None
    if policy and way == "parameter":
        document["parameters"] = {"nan": policy}
    elif policy:
        accept = f"application/json; nan={policy}".encode()
    request = codec.decode(None, None, accept, [json.dumps(document).encode()])
    body = codec.encode(request, {"y": Tensor.from_numpy(array)}).body.decode()
    data = body.partition('"data":[')[2].partition("]")[0].split(",")
    assert data[1:4] == words
    assert float(data[0]) == 0.1
    assert float(data[4]) == (1.0 if datatype == "FP16" else 1e30)


def test_refused_nan_names_the_element() -> None:
    tensors = outputs() | {"y": Tensor.from_numpy(np.array(VALUES, np.float32))}
    with pytest.raises(NotRepresentable) as caught:
        respond({"nan": "refuse"}, tensors=tensors)
    assert str(caught.value).startswith("element 1 of output 'y' is nan")
    # A binary output holds everything.
    respond({"nan": "refuse", "binary_data_output": True}, tensors=tensors)


def test_strings_that_are_no_text() -> None:
    strings = np.array([b"a", b"\xff\0"], dtype=object)
    tensors = {"z": Tensor.from_numpy(strings)}
    _, document, _ = respond(None, ["z"], tensors=tensors)
    assert document["outputs"][0]["parameters"] == {"content_type": "base64"}
    assert document["outputs"][0]["data"] == ["YQ==", "/wA="]


@pytest.mark.parametrize(
    ("value", "text"), [(0.1, "0.1"), (16777216.0, "16777216.0"), (1 / 3, "0.33333334")]
)
def test_float32_in_the_fewest_digits(value: float, text: str) -> None:
    codec = samples.codec()
    request = codec.decode(None, None, None, [b'{"inputs":{"x":1}}'])
    array = np.array([value], np.float32)
    body = codec.encode(request, {"y": Tensor.from_numpy(array)}).body
    assert f'"data":[{text}]'.encode() in body


def test_any_number_of_shapes() -> None:
    codec = samples.codec(samples.model(shape=None))
    request = codec.decode(None, None, None, [b'{"inputs":{"x":1}}'])
    for count in range(300):
        tensor = Tensor.from_numpy(np.zeros((count, 1), np.float32))
        body = json.loads(codec.encode(request, {"y": tensor}).body)
        assert body["outputs"][0]["shape"] == [count, 1]


def test_names_are_escaped() -> None:
    out = (('a"b\\', "FP32", (-1,)),)
    codec = samples.codec(samples.model(out=out))
    tensors = {'a"b\\': Tensor.from_numpy(np.zeros(1, np.float32))}
    _, document, _ = respond(codec=codec, tensors=tensors)
    assert document["outputs"][0]["name"] == 'a"b\\'


def test_json_has_a_limit_of_its_own() -> None:
    limits = Limits(max_json_bytes=100)
    codec = samples.codec(limits=limits)
    body = b'{"inputs":{"x":[' + b"1," * 100 + b"1]}}"
    text = (
        "request JSON size of 220 bytes exceeds the maximum allowed input size of 100"
    )
    with pytest.raises(BodyTooLarge, match=text):
        codec.decode(None, None, None, [body])
    with pytest.raises(BodyTooLarge, match=text):
        codec.decode(None, b"220", None, [body])
    array = np.zeros(1000, np.float32)
    assert samples.npy("FP32", array).decode(codec).inputs["x"].shape == (1000,)


@pytest.mark.parametrize("count", [200, 1000, LARGE])
@pytest.mark.parametrize(
    "head", ['"x":', '[{{"name":"x","datatype":"FP64","shape":[{}],"data":']
)
def test_numbers_become_no_tensor_that_a_body_could_not_hold(
    head: str, count: int
) -> None:
    """Two bytes of text become eight of the tensor."""
    limit = 4 * count
    codec = samples.codec(samples.model("FP64"), Limits(max_body_bytes=limit))
    head, end = head.format(count), "]}]" if "name" in head else "]}"
    start = head if "name" in head else "{" + head
    text = f'{{"inputs":{start}[{",".join("1" * count)}{end}}}'
    with pytest.raises(BodyTooLarge) as refused:
        codec.decode(None, None, None, [text.encode()])
    assert str(refused.value) == (
        f"input 'x' of shape [{count}]: its size of {8 * count} bytes exceeds the "
        f"maximum allowed input size of {limit} bytes. Use --http-max-input-size to "
        "increase the limit."
    )
    roomy = samples.codec(samples.model("FP64"), Limits(max_body_bytes=8 * count))
    request = roomy.decode(None, None, None, [text.encode()])
    assert request.inputs["x"].shape == (count,)
