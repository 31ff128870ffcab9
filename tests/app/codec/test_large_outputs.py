"""Outputs that are written in blocks say what small ones say.

Covers: app/give_way.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest

from app.codec import InferRequest, ModelCodec
from app.codec.classification import classify
from app.codec.messages import Encoding, NanPolicy
from app.codec.outputs import Output
from app.errors import NotRepresentable
from app.give_way import AT_ONCE, BLOCK
from app.limits import DEFAULT_LIMITS
from app.spec import ModelSpec, TensorSpec
from engine import Tensor
from popef_io import DataType
from tests.app.codec.samples import NUMPY, Array

SIZE = AT_ONCE + 3 * BLOCK + 6


def output(datatype: str, most: int = DEFAULT_LIMITS.max_json_bytes) -> Output:
    limits = replace(DEFAULT_LIMITS, max_json_bytes=most)
    return Output(TensorSpec.make("y", datatype), limits)


def random(datatype: str) -> Array:
    bits = np.random.default_rng(7).integers(0, 256, 8 * SIZE, np.uint8)
    if datatype == "BOOL":
        return (bits[:SIZE] & 1).astype(np.bool_)
    array: Array = bits.view(NUMPY[datatype])[:SIZE]
    return array


def size_of(datatype: str) -> int:
    """As many elements as an output in blocks has at least, and three blocks more."""
    dtype: np.dtype[Any] = np.dtype(NUMPY[datatype])
    return AT_ONCE // dtype.itemsize + 3 * BLOCK + 6


def tensor_of(array: Array, datatype: str) -> Tensor:
    return Tensor.from_numpy(array, DataType.BF16 if datatype == "BF16" else None)


@pytest.mark.parametrize("nan", [NanPolicy.LITERAL, NanPolicy.NULL, NanPolicy.STRING])
@pytest.mark.parametrize("datatype", [n for n in NUMPY if n != "BYTES"])
def test_many_numbers_are_written_as_few_are(datatype: str, nan: NanPolicy) -> None:
    written, size = output(datatype), size_of(datatype)
    array = random(datatype)[:size]
    parts = [
        written.json_data(tensor_of(array[i : i + 1000], datatype), nan)[1:-1]
        for i in range(0, size, 1000)
    ]
    whole = tensor_of(array, datatype)
    assert whole.nbytes > AT_ONCE
    text = b",".join(parts)
    assert written.json_data(whole, nan) == b"[" + text + b"]"
    blocks = written.json_items(whole, nan)
    assert b",".join(item for block in blocks for item in block) == text


def test_one_that_is_not_finite_is_refused_by_its_index() -> None:
    array = np.zeros(SIZE, np.float32)
    array[SIZE - 2] = np.nan
    with pytest.raises(NotRepresentable, match=f"element {SIZE - 2} of output 'y'"):
        output("FP32").json_data(Tensor.from_numpy(array), NanPolicy.REFUSE)


def test_more_text_than_an_answer_may_have_is_refused() -> None:
    zeros = Tensor.from_numpy(np.zeros(AT_ONCE, np.float32))
    size = len("0.0,") * AT_ONCE - 1
    assert len(output("FP32", size).json_data(zeros, NanPolicy.NULL)) == size + 2
    for most in (size - 1, AT_ONCE):
        with pytest.raises(NotRepresentable, match=f"more than {most} bytes as JSON"):
            output("FP32", most).json_data(zeros, NanPolicy.NULL)


def codec(datatype: str, **limits: int) -> ModelCodec:
    tensors = (TensorSpec.make("y", datatype, (-1, -1)),)
    spec = ModelSpec("m", "1", (), tensors)
    return ModelCodec(spec, replace(DEFAULT_LIMITS, **limits))


def asked(encoding: Encoding, *, binary: bool = False) -> InferRequest:
    request = InferRequest({}, encoding)
    request.binary = binary
    return request


def strings(count: int) -> Tensor:
    texts = np.array([b"\xff" if i == 9 else b"a%d" % i for i in range(count)], object)
    return Tensor.from_numpy(texts.reshape(2, -1))


COUNT = AT_ONCE // 4 + 10


def test_many_strings_are_written_in_every_encoding() -> None:
    tensor = strings(COUNT)
    expected = tensor.numpy().reshape(-1).tolist()
    many = codec("BYTES")
    body = many.encode(asked(Encoding.MSGPACK), {"y": tensor}).body
    found = msgpack.unpackb(body)["outputs"][0]["data"]
    assert [bytes(item) for item in found] == expected
    found = json.loads(many.encode(asked(Encoding.JSON), {"y": tensor}).body)
    assert found["outputs"][0]["parameters"] == {"content_type": "base64"}
    assert len(found["outputs"][0]["data"]) == COUNT
    body = many.encode(asked(Encoding.NPY), {"y": tensor}).body
    assert body.endswith(b"a%d" % (COUNT - 1))


@pytest.mark.parametrize("encoding", [Encoding.JSON, Encoding.MSGPACK, Encoding.NPY])
def test_more_strings_than_are_written_one_by_one_are_refused(
    encoding: Encoding,
) -> None:
    few = codec("BYTES", max_strings=COUNT - 1)
    with pytest.raises(NotRepresentable, match=f"has {COUNT} strings"):
        few.encode(asked(encoding), {"y": strings(COUNT)})
    if encoding is Encoding.JSON:
        binary = few.encode(asked(encoding, binary=True), {"y": strings(COUNT)})
        assert binary.status == 200


def test_a_list_of_many_numbers_in_msgpack() -> None:
    array = random("INT32").reshape(2, -1)[:, : BLOCK * 20]
    array = np.ascontiguousarray(array)
    outputs = {"y": Tensor.from_numpy(array)}
    body = codec("INT32").encode(asked(Encoding.MSGPACK), outputs).body
    assert msgpack.unpackb(body)["outputs"][0]["data"] == array.reshape(-1).tolist()


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT8", "UINT8", "INT64"])
def test_the_highest_of_many_values_are_those_of_a_whole_sort(datatype: str) -> None:
    array = random(datatype)[: 2 * (SIZE // 2)].reshape(2, -1)
    if datatype == "FP32":
        array = np.where(array > 0, np.float32(np.nan), array)  # more than are asked
    written = output(datatype)
    for count in (1, 7, 1000):
        found = classify(
            written, Tensor.from_numpy(array), count, (), batched=True
        ).numpy()
        if array.dtype.kind == "f":
            order = np.argsort(-array, axis=1, kind="stable")
        else:
            order = np.argsort(~array, axis=1, kind="stable")
        for texts, indices in zip(found, order, strict=True):
            assert [int(text.split(b":")[1]) for text in texts] == indices[
                :count
            ].tolist()


def test_too_many_classes_are_refused_before_anything_is_sorted() -> None:
    array = np.lib.stride_tricks.as_strided(
        np.zeros(1, np.float32), (1 << 21,), (4 * 0,)
    )
    tensor = Tensor.from_numpy(np.ascontiguousarray(array))
    with pytest.raises(NotRepresentable, match="at most 1048576"):
        classify(output("FP32"), tensor, (1 << 20) + 1, (), batched=False)


def test_what_is_text_is_told_from_what_goes_out_as_it_is() -> None:
    numbers, texts = codec("FP32"), codec("BYTES")
    size = AT_ONCE + 1
    assert numbers.takes_long_to_encode(asked(Encoding.JSON), size)
    assert not numbers.takes_long_to_encode(asked(Encoding.JSON, binary=True), size)
    assert numbers.takes_long_to_encode(asked(Encoding.MSGPACK), size)
    assert not numbers.takes_long_to_encode(asked(Encoding.MSGPACK, binary=True), size)
    assert texts.takes_long_to_encode(asked(Encoding.MSGPACK, binary=True), size)
    assert not texts.takes_long_to_encode(asked(Encoding.JSON, binary=True), size)
    request = asked(Encoding.JSON, binary=True)
    request.binary_by_name = {"y": False}
    assert numbers.takes_long_to_encode(request, size)
    request = asked(Encoding.JSON, binary=True)
    request.classes = {"y": 1}
    assert numbers.takes_long_to_encode(request, size)
    assert not numbers.takes_long_to_encode(asked(Encoding.JSON), AT_ONCE)


@pytest.mark.parametrize(
    ("size", "count", "takes_long"),
    [(4096, 5, False), (8000, 1 << 20, True), (240_000, 5, True), (800, 2000, False)],
)
def test_many_classes_are_not_written_by_the_event_loop(
    size: int, count: int, takes_long: bool
) -> None:
    request = asked(Encoding.JSON)
    request.classes = {"y": count}
    assert codec("FP32").takes_long_to_encode(request, size) is takes_long
