"""The client side of the encodings; `test_evaluate.py` holds it against a gateway."""

from __future__ import annotations

import io
import json

import msgpack
import numpy as np
import pytest
from formats import (
    DATATYPES,
    REQUESTS,
    Body,
    read_answer,
    to_binary,
    to_json,
    to_json_shorthand,
    to_msgpack,
    to_npy,
)

X = np.array([[1.5, -2.0]], np.float32)
N = np.array([7], np.int64)


def test_json_describes_flat_data() -> None:
    document = json.loads(to_json({"x": X, "n": N}).content)
    assert document == {
        "inputs": [
            {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2.0]},
            {"name": "n", "shape": [1], "datatype": "INT64", "data": [7]},
        ]
    }


def test_json_shorthand_nests_values() -> None:
    document = json.loads(to_json_shorthand({"x": X}, ["y"]).content)
    assert document == {"inputs": {"x": [[1.5, -2.0]]}, "outputs": [{"name": "y"}]}


def test_msgpack_has_bytes() -> None:
    document = msgpack.unpackb(to_msgpack({"x": X}).content)
    assert document["inputs"][0]["data"] == X.tobytes()


def test_binary_puts_tensors_behind_the_header_in_its_order() -> None:
    body = to_binary({"x": X, "n": N})
    length = int(body.headers["Inference-Header-Content-Length"])
    sizes = [
        item["parameters"]["binary_data_size"]
        for item in json.loads(body.content[:length])["inputs"]
    ]
    assert sizes == [8, 8]
    assert body.content[length:] == X.tobytes() + N.tobytes()


def test_npy_is_what_numpy_reads() -> None:
    np.testing.assert_array_equal(np.load(io.BytesIO(to_npy({"x": X}).content)), X)


def test_npy_cannot_name_outputs() -> None:
    with pytest.raises(ValueError, match="no room"):
        to_npy({"x": X}, ["y"])


@pytest.mark.parametrize("name", [name for name in REQUESTS if name != "npy"])
def test_outputs_are_left_out_unless_asked_for(name: str) -> None:
    assert b"outputs" not in REQUESTS[name]({"x": X}).content
    assert b"outputs" in REQUESTS[name]({"x": X}, ["y"]).content


@pytest.mark.parametrize("dtype", DATATYPES.values())
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3)])
def test_answers_keep_type_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    for encode in (to_json, to_msgpack, to_binary):
        answer = read_answer(*as_answer(encode({"y": array, "n": N})))
        assert answer["y"].dtype == array.dtype
        np.testing.assert_array_equal(answer["y"], array)
        np.testing.assert_array_equal(answer["n"], N)


def test_unknown_content_type_is_refused() -> None:
    with pytest.raises(ValueError, match="text/html"):
        read_answer({"Content-Type": "text/html; charset=utf-8"}, b"")


def as_answer(body: Body) -> tuple[dict[str, str], bytes]:
    """Turn a request into the response that would carry the same tensors."""
    headers = dict(body.headers)
    if headers["Content-Type"] == "application/msgpack":
        return headers, body.content.replace(b"\xa6inputs", b"\xa7outputs", 1)
    if "Inference-Header-Content-Length" in headers:
        length = int(headers["Inference-Header-Content-Length"])
        headers["Inference-Header-Content-Length"] = str(length + 1)
    return headers, body.content.replace(b'"inputs"', b'"outputs"', 1)
