"""Values to tensors and back, in every datatype and encoding.

Covers: plugins/client/src/popgate_client/encodings.py.
"""

from __future__ import annotations

import io
import json
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest

from popgate_client import (
    DTYPES,
    Client,
    InvalidRequest,
    ServerError,
    Tensor,
    tensor_of,
)
from popgate_client.encodings import Encoding, decode, encode
from popgate_client.http1 import Answer
from popgate_client.tensors import to_bf16

#: The type of strings without a length, which numpy has from 2.0 on.
ANY_LENGTH = getattr(np.dtypes, "StringDType", lambda: "U")()


def sample(datatype: str) -> Any:
    if datatype == "BYTES":
        return np.array([["a", "ß", ""]], object)
    values = np.array([[0, 1, 1]], DTYPES[datatype])
    return values / 3 if datatype.startswith(("FP", "BF")) else values


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("datatype", DTYPES)
def test_there_and_back(datatype: str, encoding: Encoding) -> None:
    """What is sent as an input reads as an output."""
    tensor = tensor_of("x", sample(datatype), datatype)
    headers, parts = encode(encoding, [tensor])
    body = b"".join(p if isinstance(p, bytes) else p.tobytes() for p in parts)
    lower = {name.lower(): value for name, value in headers.items()}
    length = int(lower.get("inference-header-content-length", -1))
    if encoding is Encoding.npy:
        answer = Answer(200, lower, body)
    else:
        body, length = renamed(body, length)
        answer = Answer(200, lower, body, json_length=length)
    outputs = decode(answer, "x")
    want = tensor.array
    if datatype == "BF16":
        want = sample(datatype).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(outputs["x"], want)
    assert outputs["x"].dtype == DTYPES[datatype]
    assert outputs.datatypes["x"] in (datatype, "BYTES")


def renamed(body: bytes, length: int) -> tuple[bytes, int]:
    """With its inputs as outputs, as an answer has them."""
    if b"\xa6inputs" in body:
        return body.replace(b"\xa6inputs", b"\xa7outputs"), length
    grown = body.replace(b'"inputs"', b'"outputs"')
    return grown, length + 1 if length >= 0 else length


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("kind", [np.ma.masked_array, np.rec.array])
def test_subclasses_of_arrays_are_sent_as_arrays(encoding: Encoding, kind: Any) -> None:
    plain = np.array([[1.0, 2.0]], np.float32)
    expected = encode(encoding, [tensor_of("x", plain, "FP32")])
    headers, parts = encode(encoding, [tensor_of("x", kind(plain), "FP32")])
    assert headers == expected[0]
    assert [bytes(p) for p in parts] == [bytes(p) for p in expected[1]]


def test_masked_values_are_refused() -> None:
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    with pytest.raises(InvalidRequest, match="has masked values"):
        tensor_of("x", masked, "FP32")


def test_brain_floats_are_rounded_as_everywhere() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 100_000, np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        want = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(to_bf16(values), want)
    own = values.astype(ml_dtypes.bfloat16)
    tensor = tensor_of("x", own)
    assert tensor.datatype == "BF16"
    np.testing.assert_array_equal(np.asarray(tensor.raw()), own.view(np.uint16))
    single = tensor_of("x", 1.5, "BF16", [])
    _, (file,) = encode(Encoding.npy, [single])
    assert np.load(io.BytesIO(bytes(file))).shape == ()


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "want"),
    [
        (3, "INT32", [-1, 1], [[3]]),
        ([1, 2], "FP32", [-1, 2], [[1.0, 2.0]]),
        (True, "BOOL", [1], [True]),
        (np.float32(0.5), "FP32", [1, 1], [[0.5]]),
        ("text", "BYTES", [1], [b"text"]),
        (b"a\0", "BYTES", [-1, 1], [[b"a\0"]]),
        (["a\0", "b"], "", None, [b"a\0", b"b"]),
        (np.array(["a\u1234"]), "", None, ["a\u1234".encode()]),
        (np.array(["a\u1234"], ANY_LENGTH), "", None, ["a\u1234".encode()]),
        (np.array([["a"]], ANY_LENGTH), "BYTES", [-1, 1], [[b"a"]]),
        ([3.39e38, np.inf], "BF16", None, [np.float32(3.39e38), np.inf]),
        ([[1, 2], [3, 4]], "", None, [[1, 2], [3, 4]]),
        (np.arange(4, dtype=">i2"), "", None, [0, 1, 2, 3]),
        (np.arange(4).reshape(2, 2).T, "INT64", [2, 2], [[0, 2], [1, 3]]),
    ],
)
def test_values(value: Any, datatype: str, shape: Any, want: Any) -> None:
    tensor = tensor_of("x", value, datatype, shape)
    assert tensor.array.tolist() == want
    assert tensor.array.flags.c_contiguous
    assert tensor.array.dtype == DTYPES[tensor.datatype]


@pytest.mark.parametrize(
    ("value", "datatype", "said"),
    [
        ([[1, 2], [3]], "FP32", "the nested lists differ in length"),
        ([0.5], "INT32", "the values of float64 do not fit INT32"),
        ([300], "UINT8", "do not fit UINT8"),
        (["a"], "FP32", "expected FP32, got values of <U1"),
        ([1e39, 1.0], "FP32", "a finite number is too large for FP32"),
        ([10**400, 1], "FP64", "a finite number is too large for FP64"),
        ([2**64, 1], "UINT64", f"{2**64} is out of range for UINT64"),
        ([65520, -float("inf")], "FP16", "a finite number is too large for FP16"),
        ([1j], "", "the protocol has no datatype for complex128"),
        ([-3.4e38], "BF16", "a finite number is too large for BF16"),
        (
            np.array([3.4e38], np.float32),
            "BF16",
            "a finite number is too large for BF16",
        ),
        ([1], "FP8", "unknown datatype FP8"),
        (["a", None], "BYTES", 'input x: None is not a string; send "" for a gap'),
        ([["a", float("nan")]], "BYTES", "input x: nan is not a string"),
        ([["a", ["b"]]], "BYTES", "input x: expected strings, got list"),
        ([{"a": 1}], "BYTES", "input x: expected strings, got dict"),
        (["a", "\ud800"], "", "input x: a string is not valid Unicode"),
    ],
)
def test_what_does_not_fit(value: Any, datatype: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        tensor_of("x", value, datatype)


def test_what_an_encoding_cannot_carry() -> None:
    text = tensor_of("x", b"\xff")
    with pytest.raises(InvalidRequest, match="not UTF-8, which JSON requires"):
        encode(Encoding.json, [text])
    with pytest.raises(InvalidRequest, match="'x' has strings that end in a zero"):
        encode(Encoding.npy, [tensor_of("x", [b"a\0", b"b"])])
    one = Tensor("x", "FP32", np.zeros(1, np.float32))
    with pytest.raises(InvalidRequest, match="npy carries one tensor"):
        encode(Encoding.npy, [one, one])
    with pytest.raises(InvalidRequest, match="cannot be written as JSON"):
        encode(Encoding.json, [one], parameters={"a": object()})


@pytest.mark.parametrize("encoding", [Encoding.json, Encoding.msgpack])
def test_parameters_of_any_encoding(encoding: Encoding) -> None:
    one = tensor_of("x", [np.nan])
    _, parts = encode(encoding, [one], parameters={"a": np.float32(1.5)})
    body = b"".join(p for p in parts if isinstance(p, bytes))
    loads = msgpack.unpackb if encoding is Encoding.msgpack else json.loads
    assert loads(body)["parameters"] == {"a": 1.5}
    for wrong in (object(), {1}):
        with pytest.raises(InvalidRequest, match="the request cannot be written"):
            encode(encoding, [one], parameters={"a": wrong})
    if encoding is Encoding.msgpack:
        for wrong in (2**70, "\ud800"):
            with pytest.raises(InvalidRequest, match="the request cannot be written"):
                encode(encoding, [one], parameters={"a": wrong})


@pytest.mark.parametrize("encoding", list(Encoding)[:3])
def test_parameters_that_are_no_finite_numbers(encoding: Encoding) -> None:
    given = {"a": np.nan, "b": [np.float32(-np.inf)], "c": None, "d": "null"}
    _, parts = encode(encoding, [tensor_of("x", [1])], parameters=given)
    loads = msgpack.unpackb if encoding is Encoding.msgpack else json.loads
    found = loads(bytes(parts[0]))["parameters"]
    assert np.isnan(found["a"])
    assert (found["b"], found["c"], found["d"]) == ([-np.inf], None, "null")


def test_documents_that_cannot_be_written() -> None:
    with Client("http://127.0.0.1:1") as client:
        for call in (
            lambda: client.ask("POST", "/v1/x", {"a": object()}),
            lambda: client.load("m", parameters={"a": {1}}),
            lambda: client.load("m", config={"a": object()}),
            lambda: client.rerank("m", "\ud800", ["a"]),
            lambda: client.classify("m", "\ud800"),
        ):
            with pytest.raises(InvalidRequest, match="the request cannot be written"):
                call()


def output(datatype: str, data: str) -> bytes:
    fields = f'"name": "y", "datatype": "{datatype}", "shape": [1], "data": {data}'
    return f'{{"outputs": [{{{fields}}}]}}'.encode()


NPY = (
    b"\x93NUMPY\x01\x00\x50\x00"
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }         \n"
)


@pytest.mark.parametrize(
    ("media", "body"),
    [
        ("application/json", output("INT8", "[300]")),
        ("application/json", output("UINT8", "[-1]")),
        ("application/json", output("INT32", "[1.5]")),
        ("application/json", output("UINT64", "[18446744073709551615.0]")),
        ("application/json", output("INT32", '["1"]')),
        ("application/json", output("BOOL", "[2]")),
        ("application/json", output("BOOL", "[null]")),
        ("application/json", b"[" * 100_000),
        ("application/json", b"\xff" * 100_000),
        ("application/x-npy", NPY),
        ("application/x-npy", NPY.replace(b"{", b"(")),
        ("application/x-npy", b"PK\x03\x04"),
    ],
)
def test_an_answer_that_cannot_be_read(media: str, body: bytes) -> None:
    with pytest.raises(ServerError, match="answer cannot be read") as caught:
        decode(Answer(200, {"content-type": media}, body))
    assert len(str(caught.value)) < 500


def test_brain_floats_lose_only_precision() -> None:
    values = np.array([1.5, 300, -1, 1e38], ml_dtypes.bfloat16)
    for value, datatype in zip(values, ("INT8", "UINT8", "UINT8", "FP16"), strict=True):
        with pytest.raises(InvalidRequest, match=f"{datatype}"):
            tensor_of("x", np.array([value]), datatype)
    assert tensor_of("x", values[1:2], "INT32").array.tolist() == [300]
    assert tensor_of("x", values[:1], "FP16").array.tolist() == [1.5]
    assert tensor_of("x", values[:1]).datatype == "BF16"


def test_npy_leaves_the_encoding_of_several_outputs_open() -> None:
    tensor = Tensor("x", "FP32", np.zeros((1, 2), np.float32))
    for encoding in Encoding:
        headers, _ = encode(encoding, [tensor])
        assert ("Accept" in headers) is (encoding is not Encoding.npy)


BUFFER = b"a\0\xff"


@pytest.mark.parametrize(
    "value",
    [
        [bytearray(BUFFER)], [memoryview(BUFFER)], ("a", memoryview(BUFFER)),
        [[bytearray(BUFFER), b"b"]], np.array([bytearray(BUFFER), None], object)[:1],
    ],
)  # fmt: skip
def test_buffers_are_strings_of_bytes(value: Any) -> None:
    assert BUFFER in tensor_of("x", value, "BYTES").array.reshape(-1).tolist()
    alone = tensor_of("x", bytearray(BUFFER), "BYTES", [-1])
    assert alone.array.tolist() == [BUFFER]
