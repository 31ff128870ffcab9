"""Numbers of every datatype through a real model and back, in every encoding."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper

from tests.app.served import Serve, ServedGateway
from tests.engine import models

Array = npt.NDArray[Any]
BINARY = "application/octet-stream"
ONNX = {
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "INT64": TensorProto.INT64,
    "UINT64": TensorProto.UINT64,
    "BOOL": TensorProto.BOOL,
    "BYTES": TensorProto.STRING,
}
DTYPES: dict[str, Any] = {
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "BOOL": np.bool_,
}
FLOATS = ("FP16", "BF16", "FP32", "FP64")


def values(datatype: str) -> Array:
    """The odd ones among its values: the largest, the least, those with many digits."""
    dtype = DTYPES[datatype]
    if datatype == "BOOL":
        return np.array([True, False, True])
    if datatype in ("INT64", "UINT64"):
        limits = np.iinfo(dtype)
        return np.array([limits.min, limits.max, (1 << 53) + 1, 0], dtype)
    about = ml_dtypes.finfo(dtype)
    least = about.smallest_subnormal
    return np.array([0.1, -0.0, about.max, -about.max, least, 1 / 3, 65504], dtype)


def fill(root: Path) -> None:
    """One model for each datatype, which gives back what it gets."""
    for datatype, kind in ONNX.items():
        tensors = [helper.make_tensor_value_info(n, kind, ["N"]) for n in "xy"]
        graph = helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])], "g", tensors[:1], tensors[1:]
        )
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        models.write_graph(root / f"{datatype}.popef", model, batching="rows")


@pytest.fixture(scope="module")
def gateway(serve: Serve) -> ServedGateway:
    return serve(fill)


def ask(
    gateway: ServedGateway, datatype: str, content: bytes, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = gateway.client.post(
        f"/v2/models/{datatype}/infer", content=content, headers=named
    )
    return response.status_code, response.content, dict(response.headers)


def tensor(datatype: str, count: int, **more: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": datatype, "shape": [count], **more}


def in_json(datatype: str, data: Any, **parameters: Any) -> bytes:
    count = len(data)
    document = {"inputs": [tensor(datatype, count, data=data)]}
    return json.dumps(document | {"parameters": parameters}).encode()


def data_of(content: bytes) -> Any:
    return json.loads(content)["outputs"][0]["data"]


def as_array(content: bytes, dtype: Any) -> Array:
    """The numbers of a JSON answer, of which numpy alone would make floats first."""
    return np.array([np.dtype(dtype).type(v) for v in data_of(content)])


def bits(array: Array) -> bytes:
    return array.tobytes()


@pytest.mark.parametrize("datatype", DTYPES)
class TestThere:
    def test_in_json(self, gateway: ServedGateway, datatype: str) -> None:
        sent = values(datatype)
        exact = [float(v) if datatype in FLOATS else v.item() for v in sent]
        status, content, _ = ask(gateway, datatype, in_json(datatype, exact))
        assert status == 200, content
        assert bits(as_array(content, sent.dtype)) == bits(sent)
        if datatype in FLOATS:
            assert content.count(b"0.1,") == 1  # and none of the digits of a double

    def test_in_binary(self, gateway: ServedGateway, datatype: str) -> None:
        raw = bits(values(datatype))
        head = json.dumps(
            {
                "inputs": [
                    tensor(
                        datatype,
                        len(values(datatype)),
                        parameters={"binary_data_size": len(raw)},
                    )
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        length = str(len(head))
        status, content, headers = ask(
            gateway, datatype, head + raw, Inference_Header_Content_Length=length
        )
        assert status == 200, content
        assert content[int(headers["inference-header-content-length"]) :] == raw
        # Without a document, and with numbers in JSON as the answer.
        status, content, _ = ask(
            gateway,
            datatype,
            raw,
            Inference_Header_Content_Length="0",
            Accept="application/json",
        )
        assert status == 200, content
        assert bits(as_array(content, DTYPES[datatype])) == raw

    def test_in_msgpack(self, gateway: ServedGateway, datatype: str) -> None:
        sent = values(datatype)
        as_list = [float(v) if datatype in FLOATS else v.item() for v in sent]
        for data in (bits(sent), as_list):
            document = {"inputs": [tensor(datatype, len(sent), data=data)]}
            status, content, _ = ask(gateway, datatype, msgpack.packb(document))
            assert status == 200, content
            assert msgpack.unpackb(content)["outputs"][0]["data"] == bits(sent)

    def test_as_npy(self, gateway: ServedGateway, datatype: str) -> None:
        sent = values(datatype)
        file = io.BytesIO()
        np.save(file, sent)
        status, content, headers = ask(gateway, datatype, file.getvalue())
        assert status == 200, content
        assert headers["content-type"] == "application/x-npy"
        got = np.load(io.BytesIO(content))
        assert bits(got) == bits(sent)
        assert got.dtype.itemsize == sent.dtype.itemsize

    def test_in_base64(self, gateway: ServedGateway, datatype: str) -> None:
        raw = bits(values(datatype))
        one = tensor(
            datatype,
            len(values(datatype)),
            data=base64.b64encode(raw).decode(),
            parameters={"content_type": "base64"},
        )
        content = json.dumps({"inputs": [one]}).encode()
        status, content, _ = ask(gateway, datatype, content, Accept=BINARY)
        assert status == 200, content
        assert content.endswith(raw)


@pytest.mark.parametrize("datatype", FLOATS)
class TestNotFinite:
    WORDS = ("NaN", "Infinity", "-Infinity")

    def raw(self, datatype: str) -> bytes:
        odd = [np.nan, np.inf, -np.inf, 0.5]
        return bits(np.array(odd, DTYPES[datatype]))

    @pytest.mark.parametrize(
        ("policy", "written"),
        [
            ("literal", b"[NaN,Infinity,-Infinity,0.5]"),
            ("string", b'["NaN","Infinity","-Infinity",0.5]'),
            ("null", b"[null,null,null,0.5]"),
        ],
    )
    def test_written(
        self, gateway: ServedGateway, datatype: str, policy: str, written: bytes
    ) -> None:
        literals = [float(word) for word in self.WORDS]
        for data in ([*literals, 0.5], [*self.WORDS, 0.5]):
            content = in_json(datatype, data, nan=policy)
            status, content, _ = ask(gateway, datatype, content)
            assert status == 200, content
            assert b'"data":' + written in content
        status, content, _ = ask(
            gateway,
            datatype,
            self.raw(datatype),
            Inference_Header_Content_Length="0",
            Accept=f"application/json; nan={policy}",
        )
        assert b'"data":' + written in content

    def test_refused(self, gateway: ServedGateway, datatype: str) -> None:
        content = in_json(datatype, [0.5, "-Infinity"], nan="refuse")
        status, content, _ = ask(gateway, datatype, content)
        assert status == 422
        assert b"element 1 of output 'y' is -inf" in content

    def test_null_comes_in_where_it_goes_out(
        self, gateway: ServedGateway, datatype: str
    ) -> None:
        content = in_json(datatype, [None, 0.5], nan="null")
        status, content, _ = ask(gateway, datatype, content)
        assert (status, data_of(content)) == (200, [None, 0.5])
        status, content, _ = ask(
            gateway, datatype, in_json(datatype, [None, 0.5], missing="refuse")
        )
        assert status == 400
        assert b"element 0 of input 'x' is null" in content

    def test_carried_as_bytes(self, gateway: ServedGateway, datatype: str) -> None:
        raw = self.raw(datatype)
        document = {"inputs": [tensor(datatype, 4, data=raw)]}
        status, content, _ = ask(gateway, datatype, msgpack.packb(document))
        assert msgpack.unpackb(content)["outputs"][0]["data"] == raw
        status, content, _ = ask(
            gateway, datatype, raw, Inference_Header_Content_Length="0"
        )
        assert status == 200
        assert content.endswith(raw)


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        ("FP16", [0, 65520.0], "element 1 of input 'x'"),
        ("BF16", [3.4e38 * 1.01], "element 0 of input 'x'"),
        ("INT64", [1 << 63], "element 0 of input 'x'"),
        ("INT64", [1.0], "element 0 of input 'x'"),
        ("UINT64", [1 << 64], "element 0 of input 'x'"),
        ("UINT64", [0, -1], "element 1 of input 'x'"),
        ("BOOL", [True, 1], "element 1 of input 'x'"),
        ("BYTES", ["a", 1], "element 1 of input 'x'"),
    ],
)
def test_what_does_not_fit_is_refused(
    gateway: ServedGateway, datatype: str, data: Any, text: str
) -> None:
    contents = [in_json(datatype, data)]
    if data != [1 << 64]:  # which msgpack does not know either
        contents.append(
            msgpack.packb({"inputs": [tensor(datatype, len(data), data=data)]})
        )
    for content in contents:
        status, answer, _ = ask(gateway, datatype, content, Accept="application/json")
        assert status == 400
        assert text in json.loads(answer)["error"]


def test_rounding_is_to_nearest_even(gateway: ServedGateway) -> None:
    for datatype, ties in (
        ("FP16", {2049.0: 2048.0, 2051.0: 2052.0}),
        ("BF16", {257.0: 256.0, 259.0: 260.0}),
    ):
        status, content, _ = ask(gateway, datatype, in_json(datatype, list(ties)))
        assert (status, data_of(content)) == (200, list(ties.values()))


def test_bytes_that_are_text_and_those_that_are_none(gateway: ServedGateway) -> None:
    words = ["", "grüße", "nul\0in it", "€" * 5]
    status, content, _ = ask(gateway, "BYTES", in_json("BYTES", words))
    assert (status, data_of(content)) == (200, words)
    encoded = [base64.b64encode(word.encode()).decode() for word in words]
    parameters = {"content_type": "base64"}
    one = tensor("BYTES", len(words), data=encoded, parameters=parameters)
    content = json.dumps({"inputs": [one]}).encode()
    status, content, _ = ask(gateway, "BYTES", content)
    assert (status, data_of(content)) == (200, words)
    one["data"] = [base64.b64encode(b"\xff\xfe").decode()] * len(words)
    status, content, _ = ask(gateway, "BYTES", json.dumps({"inputs": [one]}).encode())
    assert status == 400  # ONNX has no such strings
    assert "UTF-8" in json.loads(content)["error"]
