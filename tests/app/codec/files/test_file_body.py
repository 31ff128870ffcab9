"""A body of another type is the element of a model's only BYTES input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.codec import Encoding, ModelCodec
from app.codec.messages import InferRequest
from app.codec.outputs import strings_of
from app.errors import InvalidTensor, MalformedBody, UnsupportedMediaType
from app.spec import ModelSpec, TensorSpec
from engine import Tensor
from popef_io import DataType
from tests.app.codec import samples

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
BYTES = samples.model("BYTES", (-1,), max_batch_size=8)


def decode(
    spec: ModelSpec,
    content_type: bytes | None,
    data: bytes = PNG,
    accept: bytes | None = None,
) -> InferRequest:
    chunks = [data[:5], data[5:100], data[100:]]
    return ModelCodec(spec).decode(content_type, None, accept, list(chunks))


@pytest.mark.parametrize(
    "content_type",
    [
        b"image/png",
        b"audio/wav",
        b"application/pdf",
        b"application/octet-stream",
        b"application/x-www-form-urlencoded",
        b"text/plain; charset=utf-8",
        None,
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (-1,), (-1, 1), (-1, -1)])
def test_it_is_one_element(content_type: bytes | None, shape: tuple[int, ...]) -> None:
    request = decode(samples.model("BYTES", shape), content_type)
    tensor = request.inputs["x"]
    assert strings_of(tensor) == [PNG]
    assert tensor.shape == (1,) * len(shape)
    assert request.encoding is Encoding.JSON
    assert not request.binary


def test_it_is_one_row_of_a_batched_model() -> None:
    assert decode(BYTES, b"image/png").rows == 1


def test_json_stays_json_whatever_octet_stream_says() -> None:
    body = b'{"inputs": {"x": ["a", "b"]}}'
    request = decode(BYTES, b"application/octet-stream", body)
    assert strings_of(request.inputs["x"]) == [b"a", b"b"]


def test_an_answer_in_another_encoding() -> None:
    assert decode(BYTES, b"image/png", accept=b"application/msgpack").binary
    npy = decode(BYTES, b"image/png", accept=b"application/x-npy")
    assert npy.encoding is Encoding.NPY
    assert decode(BYTES, b"image/png", accept=b"*/*").encoding is Encoding.JSON


def test_other_inputs_may_have_defaults() -> None:
    spec = samples.model(inputs=(("x", "BYTES", (-1,)), ("top", "INT64", (-1,))))
    one = Tensor.from_numpy(np.array([3]), DataType.S64)
    request = decode(replace(spec, defaults={"top": one}), b"image/png")
    assert request.inputs["top"] is one
    with pytest.raises(UnsupportedMediaType, match="'top' INT64"):
        decode(spec, b"image/png")


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((("x", "FP32", (-1, 3, 8, 8)),), r"'x' FP32\[-1,3,8,8\].*\[image\]"),
        ((("x", "BYTES", (-1,)), ("y", "BYTES", (-1,))), "multipart/form-data"),
        ((), "no input"),
    ],
)
def test_other_models_say_what_they_take(
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...], words: str
) -> None:
    out = tuple(TensorSpec.make(*one) for one in inputs)
    spec = ModelSpec("m", "1", out, (TensorSpec.make("y", "FP32", (-1,)),))
    with pytest.raises(UnsupportedMediaType, match=words):
        decode(spec, b"image/png")
    with pytest.raises(MalformedBody, match="failed to parse the request JSON"):
        decode(spec, None)


def test_an_element_of_several_is_none() -> None:
    with pytest.raises(InvalidTensor, match=r"Expected \[2\], got \[1\]"):
        decode(samples.model("BYTES", (2,)), b"image/png")


def test_an_empty_file() -> None:
    with pytest.raises(MalformedBody, match="bytes of input 'x'"):
        ModelCodec(BYTES).decode(b"image/png", None, None, [b""])


def test_an_input_that_takes_pictures() -> None:
    spec = replace(
        samples.model("FP32", (-1, 3, 8, 8), max_batch_size=4),
        encoded={"x": TensorSpec.make("x", "BYTES", (-1,))},
        shown_classes={"y": 2},
    )
    request = decode(spec, None)
    assert strings_of(request.inputs["x"]) == [PNG]
    assert request.classes == {"y": 2}
    in_json = (
        b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], '
        b'"data": ["YQ==", "Yg=="], "parameters": {"content_type": "base64"}}]}'
    )
    request = decode(spec, b"application/json", in_json)
    assert strings_of(request.inputs["x"]) == [b"a", b"b"]
    assert (request.rows, request.classes) == (2, None)
    with pytest.raises(InvalidTensor, match="expects 'FP32' or 'BYTES'"):
        decode(spec, b"application/json", in_json.replace(b"BYTES", b"INT8"))
