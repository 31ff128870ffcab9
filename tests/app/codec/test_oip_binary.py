"""The framing rules of the binary tensor extension, one by one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from app.codec import ModelCodec
from app.codec.messages import Encoding, InferRequest, NanPolicy
from app.errors import RequestError
from app.regions import Extent
from tests.app.codec import samples

TWO = (("A", "FP32", (-1,)), ("B", "BYTES", (-1,)))
A = np.array([1.5, -2], np.float32).tobytes()
B = b"\x01\0\0\0q\0\0\0\0"


def entry(name: str, datatype: str, shape: list[int], size: int | None) -> Any:
    found: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if size is not None:
        found["parameters"] = {"binary_data_size": size}
    return found


def decode(
    document: Any,
    tail: bytes,
    codec: ModelCodec,
    length: bytes | None = None,
    content_type: bytes | None = None,
    accept: bytes | None = None,
) -> Any:
    head = json.dumps(document).encode() if document is not None else b""
    length = str(len(head)).encode() if length is None else length
    return codec.decode(content_type, length, accept, [head + tail])


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(RequestError) as caught:
        decode(*args, **kwargs)
    return str(caught.value)


def two(size_a: int = len(A), size_b: int = len(B)) -> Any:
    inputs = [entry("A", "FP32", [2], size_a), entry("B", "BYTES", [2], size_b)]
    return {"inputs": inputs}


@pytest.fixture
def codec() -> ModelCodec:
    return samples.codec(samples.model(inputs=TWO))


def test_tensors_follow_in_the_order_of_the_inputs(codec: ModelCodec) -> None:
    document = two()
    got = decode(document, A + B, codec)
    assert got.inputs["A"].numpy().tolist() == [1.5, -2]
    assert got.inputs["B"].numpy().tolist() == [b"q", b""]
    document["inputs"].reverse()
    got = decode(document, B + A, codec)
    assert got.inputs["A"].numpy().tolist() == [1.5, -2]


def test_binary_and_json_inputs_may_be_mixed(codec: ModelCodec) -> None:
    document = two()
    document["inputs"][1] = {**entry("B", "BYTES", [2], None), "data": ["q", ""]}
    for _ in range(2):
        got = decode(document, A, codec)
        assert got.inputs["B"].numpy().tolist() == [b"q", b""]


def test_zero_elements_take_no_bytes(codec: ModelCodec) -> None:
    document = two(0, 0)
    for item in document["inputs"]:
        item["shape"] = [0]
    got = decode(document, b"", codec)
    assert got.inputs["A"].shape == got.inputs["B"].shape == (0,)


@pytest.mark.parametrize(
    ("document", "tail", "words"),
    [
        (
            two(),
            A + B[:-3],
            "unexpected size for input 'B', expecting 3 additional bytes for model 'm'",
        ),
        (two(), A + B + b"xy", "unexpected additional input data for model 'm'"),
        (
            two(size_a=12),
            A + b"1234" + B,
            "input byte size mismatch for input 'A' for model 'm'. Expected 8, got 12",
        ),
        (
            two(size_b=5),
            A + B[:5],
            "expected 2 string elements for inference input 'B'",
        ),
        (
            two(),
            A + b"\xff" + B[1:],
            "element 0 of input 'B' has a stated length of 255",
        ),
        ({"inputs": two()["inputs"][:1]}, A, "expected 2 inputs but got 1 inputs"),
        ([], b"", "expected an inference request"),
    ],
)
def test_sizes_have_to_add_up(
    codec: ModelCodec, document: Any, tail: bytes, words: str
) -> None:
    decode(two(), A + B, codec)  # what this teaches must not be used for those
    assert words in refusal(document, tail, codec)


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (b"-1", "inference header size should be in range (0, {}), got: -1"),
        (b"100000", "inference header size should be in range (0, {}), got: 100000"),
        (b"99999999999", "should be in range (0, {}), got: 99999999999"),
        (b"", "Unable to parse Inference-Header-Content-Length, got: "),
        (b"12x", "Unable to parse Inference-Header-Content-Length, got: 12x"),
        (b"1.0", "Unable to parse Inference-Header-Content-Length, got: 1.0"),
        (b"+10", "Unable to parse Inference-Header-Content-Length, got: +10"),
        (b"\xff", "Unable to parse Inference-Header-Content-Length, got: \\xff"),
        (b"9" * 50, "Unable to parse Inference-Header-Content-Length"),
        (b"5", "failed to parse the request JSON buffer"),
    ],
)
def test_header_length(codec: ModelCodec, length: bytes, words: str) -> None:
    total = len(json.dumps(two())) + len(A + B)
    assert words.format(total) in refusal(two(), A + B, codec, length=length)


def test_the_header_belongs_to_json(codec: ModelCodec) -> None:
    for good in (None, b"application/octet-stream", b"application/json"):
        assert decode(two(), A + B, codec, content_type=good)
    for bad in (b"application/msgpack", b"application/x-npy"):
        assert "requires a JSON header" in refusal(
            two(), A + B, codec, content_type=bad
        )


def test_known_headers_give_the_same_request(codec: ModelCodec) -> None:
    document = {
        **two(),
        "parameters": {"binary_data_output": True, "timeout": 5_000_000},
        "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
    }
    first = decode(document, A + B, codec)
    other = np.array([8, 9], np.float32).tobytes()
    again = decode(document, other + B, codec)
    assert again.inputs["A"].numpy().tolist() == [8, 9]
    assert first.inputs["A"].numpy().tolist() == [1.5, -2]
    for name in ("outputs", "binary", "binary_by_name", "timeout", "nan", "encoding"):
        assert getattr(again, name) == getattr(first, name)
    to_msgpack = decode(document, A + B, codec, accept=b"application/msgpack")
    assert to_msgpack.encoding is not first.encoding
    # A request is its own: what one handler changes no other one sees.
    again.timeout = 1.0
    again.inputs.clear()
    assert decode(document, A + B, codec).timeout == 5.0


def test_known_headers_keep_no_body_and_do_not_pile_up(codec: ModelCodec) -> None:
    for number in range(200):
        document = {**two(), "parameters": {"n": number}}
        assert decode(document, A + B, codec).parameters == {"n": number}


def raw(body: bytes, codec: ModelCodec, accept: bytes | None = None) -> Any:
    return codec.decode(b"application/octet-stream", b"0", accept, [body[:3], body[3:]])


@pytest.mark.parametrize(
    ("shape", "batch", "nbytes", "deduced"),
    [
        ((4,), 0, 16, (4,)),
        ((-1,), 0, 16, (4,)),
        ((-1, 2), 0, 16, (2, 2)),
        ((2, -1), 0, 16, (2, 2)),
        ((-1, 4), 8, 16, (1, 4)),
        ((-1, 4), 8, 48, (3, 4)),
        ((-1, -1), 8, 16, (1, 4)),
        ((-1, 2, -1), 8, 16, (1, 2, 2)),
    ],
)
def test_raw(
    shape: tuple[int, ...], batch: int, nbytes: int, deduced: tuple[int, ...]
) -> None:
    codec = samples.codec(samples.model("FP32", shape, max_batch_size=batch))
    values = np.arange(nbytes // 4, dtype=np.float32)
    got = raw(values.tobytes(), codec)
    assert got.inputs["x"].shape == deduced
    assert got.inputs["x"].numpy().ravel().tolist() == values.tolist()
    assert got.binary


@pytest.mark.parametrize(
    ("shape", "batch", "nbytes", "words"),
    [
        (
            (4,),
            0,
            12,
            "input byte size mismatch for input 'x' for model 'm'. Expected 16",
        ),
        ((-1, 4), 0, 12, "input byte size mismatch for input 'x'. Expected a multiple"),
        ((-1, 4), 0, 14, "input byte size mismatch for input 'x'. Expected a multiple"),
        ((-1, 0), 0, 12, "input byte size mismatch for input 'x'"),
        (
            (-1, -1),
            0,
            16,
            "The shape of the raw input 'x' can not be deduced because there are more",
        ),
        ((-1, -1, -1), 8, 16, "more than one variable-sized dimension"),
        (None, 0, 16, "more than one variable-sized dimension"),
        ((4,), 0, 0, "the body is empty"),
    ],
)
def test_raw_that_cannot_be_deduced(
    shape: tuple[int, ...] | None, batch: int, nbytes: int, words: str
) -> None:
    codec = samples.codec(samples.model("FP32", shape, max_batch_size=batch))
    with pytest.raises(RequestError) as caught:
        raw(bytes(nbytes), codec)
    assert words in str(caught.value)


def test_raw_needs_one_input(codec: ModelCodec) -> None:
    with pytest.raises(RequestError) as caught:
        raw(A, codec)
    assert str(caught.value).startswith(
        "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in"
    )


@pytest.mark.parametrize(("shape", "batch"), [((1,), 0), ((-1, 1), 8)])
def test_raw_strings(shape: tuple[int, ...], batch: int) -> None:
    codec = samples.codec(samples.model("BYTES", shape, max_batch_size=batch))
    got = raw(b"some \xff text", codec)
    assert got.inputs["x"].numpy().ravel().tolist() == [b"some \xff text"]
    assert got.inputs["x"].shape == (1,) * len(shape)


@pytest.mark.parametrize("shape", [(2,), (1, 1), (-1,), ()])
def test_raw_strings_need_one_element(shape: tuple[int, ...]) -> None:
    codec = samples.codec(samples.model("BYTES", shape))
    with pytest.raises(RequestError) as caught:
        raw(b"text", codec)
    assert str(caught.value).startswith(
        "For BYTE datatype raw input 'x', the model must have input shape [1]"
    )


def test_what_a_known_header_says_stays() -> None:
    """The same request again is read from memory, and means the same."""
    said = InferRequest({}, Encoding.MSGPACK)
    said.id, said.outputs, said.binary = "i", ("y",), True
    said.binary_by_name, said.classes = {"y": True}, {"y": 3}
    said.extents = {"z": Extent("r", 1, 2)}
    said.parameters, said.nan = {"a": 1}, NanPolicy.NULL
    said.timeout, said.priority, said.rows = 1.5, 2, 3
    # What belongs to one request only, not to all that say the same.
    own = {"held", "region_bytes", "read_from", "inputs"}
    names = {*InferRequest.__annotations__, "encoding"} - own
    twin = said.over({})
    for name in names:
        assert getattr(twin, name) == getattr(said, name), name
        assert getattr(said, name) != getattr(InferRequest, name, None), name


def test_a_header_that_is_known_is_not_trusted_with_another_body() -> None:
    codec = samples.codec(samples.model("BOOL", (-1,)))
    document = {"inputs": [entry("x", "BOOL", [4], 4)]}
    for _ in range(3):
        got = decode(document, b"\1\0\1\0", codec)
        assert got.inputs["x"].numpy().tolist() == [True, False, True, False]
        assert "byte with value 2" in refusal(document, b"\1\0\2\0", codec)
        assert refusal(document, b"\1\0\1", codec)
        assert refusal(document, b"\1\0\1\0\1", codec)
        length = str(len(json.dumps(document))).encode()
        assert refusal(document, b"\1\0\1\0", codec, length + b"0")
        cut = str(len(json.dumps(document)) - 1).encode()
        assert refusal(document, b"\1\0\1\0", codec, cut)
        # Another header of the same length.
        other = {"inputs": [entry("y", "BOOL", [4], 4)]}
        assert "'y'" in refusal(other, b"\1\0\1\0", codec)
