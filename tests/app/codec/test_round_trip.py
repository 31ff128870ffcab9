"""Every encoding in, every encoding out, every datatype: the same to the last bit.

Covers: app/codec/chunks.py, app/codec/messages.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.codec.messages import Body
from engine import Tensor
from tests.app.codec import samples
from tests.app.codec.samples import NUMPY, SHAPES, WAYS_IN, WAYS_OUT, Array, assert_same


def suited(datatype: str, way_in: str, way_out: str, shape: tuple[int, ...]) -> Array:
    """A sample that these encodings can carry: .npy has no string that ends in zero."""
    if datatype != "BYTES" or "npy" not in (way_in, way_out):
        return samples.sample(datatype, shape)
    values = [v for v in samples.pool("BYTES").tolist() if not v.endswith(b"\0")]
    return samples.sample(datatype, shape, np.array(values, dtype=object))


@pytest.mark.parametrize("way_out", WAYS_OUT)
@pytest.mark.parametrize("way_in", WAYS_IN)
@pytest.mark.parametrize("datatype", NUMPY)
def test_all_shapes(datatype: str, way_in: str, way_out: str) -> None:
    for shape in SHAPES:
        array = suited(datatype, way_in, way_out, shape)
        dims = tuple(-1 for _ in shape)
        codec = samples.codec(samples.model(datatype, dims))
        if way_in == "msgpack shorthand" and 0 in shape:
            continue  # what an empty list cannot say is tested with the shorthand
        body = WAYS_IN[way_in](datatype, array)
        request = body.decode(codec, WAYS_OUT[way_out])
        given_tensor = request.inputs["x"]
        assert given_tensor.shape == shape
        response = codec.encode(request, {"y": given_tensor})
        assert response.status == 200
        assert_same(samples.read_response(response)["y"], array)


@pytest.mark.parametrize("cut", [1, 7, 64])
@pytest.mark.parametrize("way_in", WAYS_IN)
@pytest.mark.parametrize("datatype", ["FP32", "BOOL", "BYTES"])
def test_bodies_in_chunks(datatype: str, way_in: str, cut: int) -> None:
    array = suited(datatype, way_in, "JSON", (2, 3))
    codec = samples.codec(samples.model(datatype, (-1, 3)))
    for _ in range(2):  # the second time what the first taught is used
        request = WAYS_IN[way_in](datatype, array).decode(codec, b"*/*", cut)
        response = codec.encode(request, {"y": request.inputs["x"]})
        assert_same(samples.read_response(response)["y"], array)


@pytest.mark.parametrize("datatype", NUMPY)
def test_every_half_and_every_byte(datatype: str) -> None:
    """All values of the types that have few enough go through JSON."""
    kind = NUMPY[datatype]
    size = 0 if datatype == "BYTES" else np.dtype(kind).itemsize
    if size not in (1, 2) or datatype == "BOOL":
        return
    unsigned = np.arange(256**size, dtype=np.uint8 if size == 1 else np.uint16)
    array = unsigned.view(kind)
    codec = samples.codec(samples.model(datatype))
    request = samples.binary(datatype, array).decode(codec)
    text = codec.encode(request, {"y": request.inputs["x"]})
    assert_same(samples.read_response(text)["y"], array)
    again = samples.json_flat(datatype, array).decode(codec)
    assert_same(again.inputs["x"].numpy().view(kind), array)


FLOATS = {"FP16": 16, "FP32": 32, "FP64": 64}


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(sorted(FLOATS)), st.sampled_from(sorted(WAYS_IN)))
def test_any_float(data: st.DataObject, datatype: str, way_in: str) -> None:
    shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4)
    array = data.draw(arrays.arrays(NUMPY[datatype], shapes))
    codec = samples.codec(samples.model(datatype, None))
    request = WAYS_IN[way_in](datatype, array).decode(codec, b"application/json")
    response = codec.encode(request, {"y": request.inputs["x"]})
    assert_same(samples.read_response(response)["y"], array)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=8), max_size=6), st.sampled_from(sorted(WAYS_OUT)))
def test_any_strings(values: list[bytes], way_out: str) -> None:
    if way_out == "npy":
        values = [value.rstrip(b"\0") for value in values]
    array = np.empty(len(values), dtype=object)
    array[:] = values
    codec = samples.codec(samples.model("BYTES"))
    request = samples.binary("BYTES", array).decode(codec, WAYS_OUT[way_out])
    response = codec.encode(request, {"y": request.inputs["x"]})
    assert_same(samples.read_response(response)["y"], array)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=8), max_size=6))
def test_any_text_in_json(values: list[str]) -> None:
    encoded = [value.encode("utf-8", "surrogatepass") for value in values]
    array = np.empty(len(values), dtype=object)
    array[:] = encoded
    codec = samples.codec(samples.model("BYTES"))
    request = samples.binary("BYTES", array).decode(codec, b"application/json")
    response = codec.encode(request, {"y": request.inputs["x"]})
    assert_same(samples.read_response(response)["y"], array)


def test_large_responses_are_not_joined() -> None:
    array = np.arange(100_000, dtype=np.float32)
    codec = samples.codec()
    for accept, parts in ((b"application/octet-stream", 2), (b"application/json", 3)):
        request = samples.npy("FP32", array).decode(codec, accept)
        response = codec.encode(request, {"y": request.inputs["x"]})
        assert len(response.parts) == parts
        assert_same(samples.read_response(response)["y"], array)


def test_binary_tensors_are_views_of_the_body() -> None:
    array = np.arange(50_000, dtype=np.float32)
    body = samples.binary("FP32", array)
    length = int(body.headers["inference-header-content-length"])
    chunks: Body = [body.data[:1000], b"", body.data[1000:90_000], body.data[90_000:]]
    request = samples.codec().decode(None, str(length).encode(), None, chunks)
    parts = request.inputs["x"].parts
    views = [part for part in parts if isinstance(part, memoryview)]
    assert [view.obj for view in views] == [chunks[0], chunks[2], chunks[3]]
    assert_same(request.inputs["x"].numpy(), array)
    assert math.prod(request.inputs["x"].shape) == array.size


@pytest.mark.parametrize("datatype", ["FP32", "BOOL", "BF16", "BYTES"])
def test_what_came_before_changes_nothing_but_the_time(datatype: str) -> None:
    """Headers and answers are remembered by what makes them the same."""
    codec = samples.codec(samples.model(datatype, (-1, 2)))
    values = samples.pool(datatype)
    for turn in range(6):
        for rows in (1, 3, 0, 1):
            array = samples.sample(datatype, (rows, 2), np.roll(values, turn))
            request = samples.binary(datatype, array).decode(codec, WAYS_OUT["binary"])
            assert_same(request.inputs["x"].numpy().view(array.dtype), array)
            response = codec.encode(request, {"y": request.inputs["x"]})
            assert_same(samples.read_response(response)["y"], array)
            request.id = "an id"  # has to be in the answer
            response = codec.encode(request, {"y": request.inputs["x"]})
            assert b'"id":"an id"' in response.body
            assert_same(samples.read_response(response)["y"], array)


def test_answers_of_several_outputs_are_told_apart_by_all_shapes() -> None:
    out = (("y", "FP32", (-1,)), ("z", "INT64", (-1,)))
    codec = samples.codec(samples.model("FP32", (-1,), out=out))
    for _ in range(3):
        for counts in ((1, 2), (2, 1), (0, 3), (0, 0), (40_000, 1)):
            y = np.arange(counts[0], dtype=np.float32)
            z = np.arange(counts[1], dtype=np.int64)
            request = samples.binary("FP32", y).decode(codec, WAYS_OUT["binary"])
            outputs = {"z": Tensor.from_numpy(z), "y": Tensor.from_numpy(y)}
            found = samples.read_response(codec.encode(request, outputs))
            assert_same(found["y"], y)
            assert_same(found["z"], z)
            request.outputs = ("z",)
            found = samples.read_response(codec.encode(request, outputs))
            assert list(found) == ["z"]
            assert_same(found["z"], z)
