"""The highest values of outputs as strings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.codec import classification
from app.codec.outputs import Output
from app.errors import InvalidRequest, NotRepresentable
from app.spec import TensorSpec
from engine import Tensor
from popef_io import DataType
from tests.app.codec import samples
from tests.app.codec.samples import NUMPY, Array, Body

TYPES = [name for name in NUMPY if name not in ("BOOL", "BYTES")]


def classify(
    array: Array,
    count: int,
    datatype: str = "FP32",
    labels: tuple[str, ...] = (),
    batched: bool = False,
) -> Any:
    output = Output(TensorSpec.make("y", datatype))
    bits = array.view(np.uint16) if datatype == "BF16" else array
    tensor = Tensor.from_numpy(bits, DataType.BF16 if datatype == "BF16" else None)
    found = classification.classify(output, tensor, count, labels, batched=batched)
    texts = found.numpy()
    return [s.decode() for s in texts.reshape(-1)], texts.shape


def test_best_first() -> None:
    array = np.array([0.1, 7, -1, 1e-9], np.float32)
    assert classify(array, 2) == (["7.0:1", "0.1:0"], (2,))
    assert classify(array, 9) == (["7.0:1", "0.1:0", "1e-09:3", "-1.0:2"], (4,))
    assert classify(array, 3, labels=("cat", "dog:big")) == (
        ["7.0:1:dog:big", "0.1:0:cat", "1e-09:3"],
        (3,),
    )


def test_each_row_of_a_batch() -> None:
    array = np.array([[1, 2, 3], [30, 20, 10]], np.int32)
    assert classify(array, 2, "INT32", batched=True) == (
        ["3:2", "2:1", "30:0", "20:1"],
        (2, 2),
    )
    assert classify(array, 2, "INT32") == (["30:3", "20:4"], (2,))
    assert classify(array[:, :, None], 1, "INT32", batched=True)[1] == (2, 1)
    assert classify(array[:, 0].copy(), 1, "INT32", batched=True) == (
        ["1:0", "30:0"],
        (2, 1),
    )
    assert classify(array[:0], 2, "INT32", batched=True) == ([], (0, 0))
    # As many rows as have no bytes take no time.
    empty = np.empty((1 << 31, 0), np.int32)
    assert classify(empty, 1, "INT32", batched=True) == ([], (1 << 31, 0))


def test_ties_and_odd_numbers() -> None:
    nan, inf = np.nan, np.inf
    for datatype in ("FP16", "BF16", "FP32", "FP64"):
        array = np.array([nan, 1, -inf, 1, inf], NUMPY[datatype])
        texts, _ = classify(array, 5, datatype)
        assert texts == ["inf:4", "1.0:1", "1.0:3", "-inf:2", "nan:0"], datatype
    texts, _ = classify(np.array([5, 5, 9], np.uint8), 3, "UINT8")
    assert texts == ["9:2", "5:0", "5:1"]


@pytest.mark.parametrize("datatype", TYPES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_values_are_exact_and_sorted(datatype: str, data: Any) -> None:
    kind = np.uint16 if datatype == "BF16" else NUMPY[datatype]
    array = data.draw(arrays.arrays(kind, st.integers(1, 20)))
    if datatype == "BF16":
        array = array.view(NUMPY["BF16"])
    texts, _ = classify(array, array.size, datatype)
    assert len({text.split(":")[1] for text in texts}) == array.size
    found = []
    for text in texts:
        value, index = text.split(":")
        read = NUMPY[datatype](float(value) if "f" in datatype.lower() else int(value))
        want = array[int(index)]
        assert read == want or (np.isnan(read) and np.isnan(want))
        found.append(want)
    numbers = [float(v) for v in found if not np.isnan(v)]
    assert numbers == sorted(numbers, reverse=True)


def test_more_strings_than_anybody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "MAX_CLASSES", 3)
    array = np.zeros(5, np.float32)
    assert classify(array, 3)[1] == (3,)
    with pytest.raises(NotRepresentable, match="request its values"):
        classify(array, 4)


SPEC = samples.model(out=(("y", "FP32", (-1,)), ("z", "INT32", (-1,))))
SPEC = replace(
    SPEC, outputs=(replace(SPEC.outputs[0], labels=("a", "b")), SPEC.outputs[1])
)
OUTPUTS = {
    "y": Tensor.from_numpy(np.array([1, 2], np.float32)),
    "z": Tensor.from_numpy(np.array([4, 3], np.int32)),
}


def respond(*outputs: Any, accept: bytes | None = None, **parameters: Any) -> Any:
    codec = samples.codec(SPEC)
    document = {"inputs": {"x": [1.0]}, "outputs": outputs, "parameters": parameters}
    for _ in range(2):  # the second time with what is remembered
        request = Body(json.dumps(document).encode()).decode(codec, accept)
        response = codec.encode(request, OUTPUTS)
    return response


def wanting(name: str, count: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "parameters": {"classification": count, **more}}


def test_responses() -> None:
    y, z = json.loads(respond(wanting("y", 1), "z").body)["outputs"]
    assert y == {"name": "y", "datatype": "BYTES", "shape": [1], "data": ["2.0:1:b"]}
    assert (z["datatype"], z["data"]) == ("INT32", [4, 3])
    found = json.loads(respond(wanting("z", 2), wanting("y", 2)).body)["outputs"]
    assert [o["name"] for o in found] == ["z", "y"]
    assert [o["data"] for o in found] == [["4:0", "3:1"], ["2.0:1:b", "1.0:0:a"]]
    (plain,) = json.loads(respond(wanting("y", 0)).body)["outputs"]
    assert plain["datatype"] == "FP32"


def test_every_response_of_a_request_is_classified() -> None:
    codec = samples.codec(SPEC)
    document = {"inputs": {"x": [1.0]}, "outputs": [wanting("y", 1)]}
    request = Body(json.dumps(document).encode()).decode(codec)
    first, second = (codec.encode(request, OUTPUTS).body for _ in "ab")
    assert first == second
    assert json.loads(first)["outputs"][0]["data"] == ["2.0:1:b"]


def test_other_encodings() -> None:
    binary = respond(wanting("y", 2, binary_data=True))
    got = samples.read_response(binary)["y"]
    assert got.tolist() == [b"2.0:1:b", b"1.0:0:a"]
    packed = msgpack.unpackb(
        respond(wanting("y", 1), accept=b"application/msgpack").body
    )
    assert packed["outputs"][0]["data"] == [b"2.0:1:b"]
    npy = samples.read_response(respond(wanting("y", 1), accept=b"application/x-npy"))
    assert npy["y"].tolist() == [b"2.0:1:b"]


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES"])
def test_types_without_an_order(datatype: str) -> None:
    codec = samples.codec(samples.model(out=(("y", datatype, (-1,)),)))
    document = {"inputs": {"x": [1.0]}, "outputs": [wanting("y", 1)]}
    with pytest.raises(InvalidRequest, match=f"unsupported type '{datatype}'"):
        Body(json.dumps(document).encode()).decode(codec)
