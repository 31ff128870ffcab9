"""The models of the triton profile, asked by the stock client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from tritonclient import http as client
from tritonclient.utils import InferenceServerException

from tests.app.served import ServedGateway
from tests.support import WAIT

Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def stock(triton: ServedGateway) -> Iterator[Any]:
    with client.InferenceServerClient(triton.url.removeprefix("http://")) as made:
        yield made


def infer(stock: Any, model: str, **inputs: Array) -> Any:
    tensors = []
    for name, array in inputs.items():
        kind = client.np_to_triton_dtype(array.dtype)
        tensor = client.InferInput(name, array.shape, kind)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return stock.infer(model, tensors)


def raw(triton: ServedGateway, model: str, body: bytes) -> httpx.Response:
    """A request that is nothing but the bytes of its only input."""
    return triton.client.post(
        f"/v2/models/{model}/infer",
        content=body,
        headers={"Inference-Header-Content-Length": "0"},
    )


def tail(response: httpx.Response) -> bytes:
    return response.content[int(response.headers["inference-header-content-length"]) :]


@pytest.mark.parametrize(
    ("model", "dtype"), [("simple", np.int32), ("simple_int8", np.int8)]
)
def test_sum_and_difference(stock: Any, model: str, dtype: Any) -> None:
    a = np.arange(16, dtype=dtype).reshape(1, 16)
    b = np.full((1, 16), -1, dtype)
    result = infer(stock, model, INPUT0=a, INPUT1=b)
    assert (result.as_numpy("OUTPUT0") == a + b).all()
    assert (result.as_numpy("OUTPUT1") == a - b).all()


def test_numbers_in_digits(stock: Any) -> None:
    a = np.array([[str(i).encode() for i in range(16)]], dtype=np.object_)
    b = np.array([[b"1"] * 16], dtype=np.object_)
    result = infer(stock, "simple_string", INPUT0=a, INPUT1=b)
    assert [int(x) for x in result.as_numpy("OUTPUT0")[0]] == list(range(1, 17))
    assert [int(x) for x in result.as_numpy("OUTPUT1")[0]] == list(range(-1, 15))


def test_what_is_no_number_is_the_callers_fault(triton: ServedGateway) -> None:
    body = {"inputs": {"INPUT0": [["x"] * 16], "INPUT1": [["1"] * 16]}}
    response = triton.client.post("/v1/models/simple_string/infer", json=body)
    assert response.status_code == 400
    assert "Cast" in response.json()["error"]


def test_shapes_are_tritons(stock: Any) -> None:
    metadata = stock.get_model_metadata("simple")
    assert [t["shape"] for t in metadata["inputs"]] == [[-1, 16]] * 2
    config = stock.get_model_config("simple")
    assert config["max_batch_size"] == 8
    assert [t["dims"] for t in config["input"]] == [[16]] * 2
    assert config["input"][0]["data_type"] == "TYPE_INT32"
    assert stock.get_server_metadata()["name"] == "triton"


def test_a_batch_of_nine_is_refused(stock: Any) -> None:
    a = np.zeros((9, 16), np.int32)
    with pytest.raises(InferenceServerException) as caught:
        infer(stock, "simple", INPUT0=a, INPUT1=a)
    assert "inference request batch-size must be <= 8 for 'simple'" in str(caught.value)


def test_identity_of_text(stock: Any) -> None:
    text = np.array([["ä".encode(), b"", b"abc"]], dtype=np.object_)
    result = infer(stock, "simple_identity", INPUT0=text)
    assert (result.as_numpy("OUTPUT0") == text).all()


def test_three_inputs(stock: Any) -> None:
    arrays = {f"INPUT{i}": np.full((1, 4), i, np.float32) for i in range(3)}
    result = infer(stock, "onnx_zero_3_float32", **arrays)
    assert [result.as_numpy(f"OUTPUT{i}")[0, 0] for i in range(3)] == [0, 1, 2]


def test_raw_requests(triton: ServedGateway) -> None:
    numbers = np.arange(8, dtype=np.float32).tobytes()
    assert tail(raw(triton, "onnx_zero_1_float32", numbers)) == numbers
    assert tail(raw(triton, "onnx_zero_1_object_1_element", b"427"))[4:] == b"427"


@pytest.mark.parametrize(
    ("model", "body", "text"),
    [
        ("onnx_zero_1_object", b"427", "the model must have input shape [1]"),
        (
            "onnx_zero_1_float16",
            np.ones((2, 2), np.float16).tobytes(),
            "can not be deduced because there are more than one variable-sized",
        ),
        (
            "onnx_zero_3_float32",
            np.arange(24, dtype=np.float32).tobytes(),
            "Raw request must only have 1 input (found 1) to be deduced but got 3",
        ),
    ],
)
def test_raw_requests_that_say_too_little(
    triton: ServedGateway, model: str, body: bytes, text: str
) -> None:
    response = raw(triton, model, body)
    assert response.status_code == 400
    assert text in response.json()["error"]


def test_a_queue_of_one_takes_one(triton: ServedGateway) -> None:
    numbers = np.arange(8, dtype=np.float32).tobytes()
    model = "onnx_zero_1_float32_queue"
    first: list[httpx.Response] = []

    def ask() -> None:
        first.append(raw(triton, model, numbers))

    thread = threading.Thread(target=ask)
    thread.start()
    # It waits there for a second, so that one of many others is refused.
    others = [raw(triton, model, numbers) for _ in range(2)]
    thread.join()
    codes = sorted(r.status_code for r in [*first, *others])
    assert codes[0] == 200
    assert codes[-1] == 503


def test_a_body_too_large_is_a_bad_request(triton: ServedGateway) -> None:
    connection = HTTPConnection(triton.url.removeprefix("http://"), timeout=WAIT)
    with closing(connection):
        connection.putrequest("POST", "/v2/models/onnx_zero_1_float32/infer")
        connection.putheader("Inference-Header-Content-Length", "0")
        connection.putheader("Content-Length", str(65 << 20))
        connection.endheaders()
        response = connection.getresponse()
        text = response.read().decode()
    assert response.status == 400
    assert "exceeds the maximum allowed value of" in text
    assert "Use --http-max-input-size to increase the limit." in text


@pytest.mark.parametrize(
    "path",
    [
        "models/simple/infer",
        "models/simple/generate",
        "models/simple/generate_stream",
        "repository/index",
        "repository/models/simple/load",
        "repository/models/simple/unload",
        "trace/setting",
        "models/simple/trace/setting",
        "logging",
        "systemsharedmemory/region/name/register",
    ],
)
def test_what_is_no_json_from_its_start(triton: ServedGateway, path: str) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(1000):
            yield b"A"

    response = triton.client.post(f"/v2/{path}", content=chunks())
    assert response.status_code == 400
    text = "failed to parse the request JSON buffer: Invalid value. at 0"
    assert text in response.json()["error"]
