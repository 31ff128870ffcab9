"""The protocol and its extensions on a real server, asked by its stock clients.

Covers: plugins/triton/src/popgate_triton/shared_memory_routes.py.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.app.served import ServedGateway

STATS = {"x-stats": "open"}
ROW = np.array([[1, 2, 3, 4]], np.float32)


@pytest.fixture(scope="module")
def folder(extended_folder: Path) -> Path:
    return extended_folder


@pytest.fixture(scope="module")
def gateway(extended: ServedGateway) -> ServedGateway:
    return extended


@pytest.fixture
def stock(gateway: ServedGateway) -> Iterator[Any]:
    client = triton.InferenceServerClient(gateway.url.removeprefix("http://"))
    yield client
    client.close()


def affine_input(rows: Any = ROW) -> Any:
    tensor = triton.InferInput("input", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    return tensor


class TestStrings:
    """The model puts an exclamation mark behind every string."""

    WORDS = ("", "plain", "gr\u00fc\u00dfe, \u4e16\u754c", '"quoted\\"')

    def infer(self, stock: Any, words: list[bytes], *, into: bool, out: bool) -> Any:
        tensor = triton.InferInput("input", [len(words)], "BYTES")
        tensor.set_data_from_numpy(np.array(words, np.object_), binary_data=into)
        wanted = [triton.InferRequestedOutput("output", binary_data=out)]
        return stock.infer("text", [tensor], outputs=wanted)

    @pytest.mark.parametrize("into", [True, False])
    @pytest.mark.parametrize("out", [True, False])
    def test_text(self, stock: Any, into: bool, out: bool) -> None:
        words = [word.encode() for word in self.WORDS]
        result = self.infer(stock, words, into=into, out=out)
        found = result.as_numpy("output").tolist()
        assert [w if out else w.encode() for w in found] == [w + b"!" for w in words]

    def test_what_no_onnx_string_can_be(self, stock: Any) -> None:
        with pytest.raises(InferenceServerException, match="UTF-8"):
            self.infer(stock, [b"\xff\x00"], into=True, out=True)


class TestCompression:
    @pytest.mark.parametrize("coding", ["gzip", "deflate"])
    @pytest.mark.parametrize("rows", [1, 8000])
    @pytest.mark.parametrize("binary", [True, False])
    def test_both_ways(self, stock: Any, coding: str, rows: int, binary: bool) -> None:
        data = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        tensor = triton.InferInput("input", list(data.shape), "FP32")
        tensor.set_data_from_numpy(data, binary_data=binary)
        result = stock.infer(
            "affine",
            [tensor],
            outputs=[triton.InferRequestedOutput("output", binary_data=binary)],
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )
        np.testing.assert_array_equal(result.as_numpy("output"), data * 2 + 1)

    @pytest.mark.parametrize(
        ("accept", "coding"),
        [
            ("gzip", "gzip"),
            ("gzip;q=0.1, deflate;q=0.2", "deflate"),
            ("gzip, deflate", None),
            ("br", None),
        ],
    )
    def test_headers(
        self, gateway: ServedGateway, accept: str, coding: str | None
    ) -> None:
        response = gateway.client.post(
            "/v2/models/affine/infer",
            json={"inputs": {"input": ROW.tolist()}},
            headers={"accept-encoding": accept},
        )
        assert response.headers.get("content-encoding") == coding
        assert response.json()["outputs"][0]["data"] == (ROW * 2 + 1)[0].tolist()

    def test_errors_are_not_compressed(self, gateway: ServedGateway) -> None:
        for encoding, status in (("identity", 400), ("gzip", 400), ("br", 415)):
            response = gateway.client.post(
                "/v2/models/affine/infer",
                content=b"{",
                headers={"accept-encoding": "gzip", "content-encoding": encoding},
            )
            assert response.status_code == status
            assert "content-encoding" not in response.headers
            assert response.json()["error"]

    def test_a_bomb(self, gateway: ServedGateway) -> None:
        packer = zlib.compressobj(9)
        bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(257))
        response = gateway.client.post(
            "/v2/models/affine/infer",
            content=bomb + packer.flush(),
            headers={"content-encoding": "deflate"},
        )
        assert response.status_code == 413
        assert "Use --http-max-input-size to increase the limit" in response.text


class TestClassification:
    @pytest.mark.parametrize("binary", [True, False])
    def test_stock_client(self, stock: Any, binary: bool) -> None:
        rows = np.array([[1, 4, 2, 3], [9, 0, 5, 7]], np.float32)
        wanted = triton.InferRequestedOutput(
            "output", binary_data=binary, class_count=2
        )
        result = stock.infer("affine", [affine_input(rows)], outputs=[wanted])
        assert result.get_output("output")["datatype"] == "BYTES"
        found = np.vectorize(lambda x: x.decode() if isinstance(x, bytes) else x)(
            result.as_numpy("output")
        )
        assert found.tolist() == [["9.0:1:one", "7.0:3"], ["19.0:0:zero", "15.0:3"]]


class TestSharedMemory:
    @pytest.fixture
    def segment(self) -> Iterator[Any]:
        """Two rows of input, and place for two rows of output behind them."""
        handle = shm.create_shared_memory_region(
            "popgate", f"popgate-{os.getpid()}", 64
        )
        shm.set_shared_memory_region(handle, [np.arange(8, dtype=np.float32)])
        yield handle
        shm.destroy_shared_memory_region(handle)

    @pytest.fixture
    def registered(self, stock: Any, segment: Any) -> Iterator[Any]:
        stock.unregister_system_shared_memory()
        stock.register_system_shared_memory("io", f"/popgate-{os.getpid()}", 64)
        yield segment
        stock.unregister_system_shared_memory("io")
        assert stock.get_system_shared_memory_status() == []

    def asked(self, rows: int = 2, offset: int = 32, size: int = 32) -> Any:
        tensor = triton.InferInput("input", [rows, 4], "FP32")
        tensor.set_shared_memory("io", 16 * rows)
        wanted = triton.InferRequestedOutput("output")
        wanted.set_shared_memory("io", size, offset=offset)
        return {"inputs": [tensor], "outputs": [wanted]}

    def test_in_and_out(self, stock: Any, registered: Any) -> None:
        (status,) = stock.get_system_shared_memory_status("io")
        assert (status["name"], status["offset"], status["byte_size"]) == ("io", 0, 64)
        assert "system_shared_memory" in stock.get_server_metadata()["extensions"]
        result = stock.infer("affine", **self.asked())
        output = result.get_output("output")
        assert output["parameters"] == {
            "shared_memory_region": "io",
            "shared_memory_offset": 32,
            "shared_memory_byte_size": 32,
        }
        assert "data" not in output
        got = shm.get_contents_as_numpy(registered, np.float32, [2, 4], offset=32)
        np.testing.assert_array_equal(got, np.arange(8).reshape(2, 4) * 2 + 1)
        with pytest.raises(InferenceServerException, match="already in manager"):
            stock.register_system_shared_memory("io", f"popgate-{os.getpid()}", 64)

    def test_only_in_and_only_out(self, stock: Any, registered: Any) -> None:
        asked = self.asked()
        result = stock.infer("affine", asked["inputs"])
        expected = np.arange(8, dtype=np.float32).reshape(2, 4) * 2 + 1
        np.testing.assert_array_equal(result.as_numpy("output"), expected)
        stock.infer("affine", [affine_input()], outputs=asked["outputs"])
        got = shm.get_contents_as_numpy(registered, np.float32, [1, 4], offset=32)
        np.testing.assert_array_equal(got, ROW * 2 + 1)

    def test_in_msgpack(self, gateway: ServedGateway, registered: Any) -> None:
        place = {"shared_memory_region": "io", "shared_memory_byte_size": 32}
        request = {
            "inputs": [
                {
                    "name": "input",
                    "shape": [2, 4],
                    "datatype": "FP32",
                    "parameters": place,
                }
            ],
            "outputs": [
                {"name": "output", "parameters": {**place, "shared_memory_offset": 32}}
            ],
        }
        response = gateway.client.post(
            "/v2/models/affine/infer", content=msgpack.packb(request)
        )
        (output,) = msgpack.unpackb(response.content)["outputs"]
        assert output["parameters"]["shared_memory_offset"] == 32
        got = shm.get_contents_as_numpy(registered, np.float32, [1], offset=32)
        assert got[0] == 1
        response = gateway.client.post(
            "/v2/models/affine/infer",
            content=msgpack.packb(request),
            headers={"accept": "application/x-npy"},
        )
        assert response.status_code == 406

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"offset": 64}, "Invalid offset for shared memory region"),
            ({"offset": 40}, r"Invalid offset \+ byte size for shared memory"),
            ({"size": 16}, "should be at least 32 bytes to hold the results"),
            ({"rows": 5}, r"Invalid offset \+ byte size for shared memory"),
        ],
    )
    def test_refused(
        self, stock: Any, registered: Any, changes: dict[str, int], text: str
    ) -> None:
        with pytest.raises(InferenceServerException, match=text):
            stock.infer("affine", **self.asked(**changes))
        stock.infer("affine", **self.asked())

    def test_cut_short_by_its_owner(
        self, stock: Any, registered: Any, gateway: ServedGateway
    ) -> None:
        os.truncate(f"/dev/shm/popgate-{os.getpid()}", 16)
        with pytest.raises(InferenceServerException, match="was made shorter"):
            stock.infer("affine", **self.asked())
        with pytest.raises(InferenceServerException, match="was made shorter"):
            stock.infer("affine", **self.asked(rows=1, size=16))
        assert gateway.process.poll() is None
        os.truncate(f"/dev/shm/popgate-{os.getpid()}", 64)
        stock.infer("affine", **self.asked())

    def test_unknown_regions(self, stock: Any) -> None:
        text = "Unable to find shared memory region: 'io'"
        with pytest.raises(InferenceServerException, match=text):
            stock.infer("affine", **self.asked())
        text = "Unable to find system shared memory region: 'io'"
        with pytest.raises(InferenceServerException, match=text):
            stock.get_system_shared_memory_status("io")
        stock.unregister_system_shared_memory("io")

    @pytest.mark.parametrize(
        "body",
        [
            {"offset": 0, "byte_size": 1},
            {"key": 5, "byte_size": 1},
            {"key": "a"},
            {"key": "a", "byte_size": -1},
            {"key": "a", "byte_size": True},
            {"key": "a", "byte_size": 1, "offset": 1.5},
            {"key": "a", "byte_size": (1 << 63) - 1, "offset": 5},
        ],
    )
    def test_odd_registrations(self, gateway: ServedGateway, body: Any) -> None:
        path = "/v2/systemsharedmemory/region/odd/register"
        response = gateway.client.post(path, json=body)
        assert response.status_code == 400
        assert response.json()["error"]

    def test_cuda_is_not_there(self, stock: Any) -> None:
        assert stock.get_cuda_shared_memory_status() == []
        assert stock.get_cuda_shared_memory_status("x") == []
        stock.unregister_cuda_shared_memory()
        stock.unregister_cuda_shared_memory("x")
        with pytest.raises(InferenceServerException, match="GPUs not supported"):
            stock.register_cuda_shared_memory("x", b"aGFuZGxl", 0, 64)


class TestBasePath:
    def test_stock_client_below_it(self, gateway: ServedGateway) -> None:
        address = gateway.url.removeprefix("http://")
        client = triton.InferenceServerClient(f"{address}/some/base")
        try:
            assert client.is_server_ready()
            assert client.get_server_metadata()["version"] == "2.73"
            result = client.infer("affine", [affine_input()])
            np.testing.assert_array_equal(result.as_numpy("output"), ROW * 2 + 1)
        finally:
            client.close()

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/some/base/v2?x=1", 200),
            ("/some/basement/v2", 404),
            ("/some/base/some/base/v2", 404),
            ("/some", 404),
            ("/v2", 200),
        ],
    )
    def test_paths(self, gateway: ServedGateway, path: str, status: int) -> None:
        assert gateway.client.get(path).status_code == status


class TestRepository:
    def test_stock_client(self, stock: Any) -> None:
        entry = stock.get_model_repository_index()[0]
        assert entry == {"name": "affine", "version": "1", "state": "READY"}
        stock.unload_model("affine", unload_dependents=True)
        assert not stock.is_model_ready("affine")
        entry = stock.get_model_repository_index()[0]
        assert entry["state"] == "UNAVAILABLE"
        with pytest.raises(InferenceServerException, match="has no available versions"):
            stock.infer("affine", [affine_input()])
        stock.load_model("affine")
        assert stock.is_model_ready("affine", "1")
        text = "failed to load 'none', failed to poll from model repository"
        with pytest.raises(InferenceServerException, match=text):
            stock.load_model("none")

    @pytest.mark.parametrize(
        ("path", "body", "status"),
        [
            ("models/affine/unload", {"parameters": {"unload_dependents": 1}}, 400),
            ("models/affine/unload", {"parameters": []}, 400),
            ("models/affine/load", [], 400),
            ("models/affine/load", None, 400),
            ("models/affine/load", {"config": "{}"}, 400),
            ("models/affine/load", {"parameters": {}, "parameter": {}}, 400),
            ("models/affine/unload", {"unload_dependents": True}, 400),
            ("models/affine/unload", {"parameters": {"dependents": True}}, 400),
            ("local/index", {}, 501),
            ("local/models/affine/load", {}, 501),
        ],
    )
    def test_refused(
        self, gateway: ServedGateway, path: str, body: Any, status: int
    ) -> None:
        response = gateway.client.post(
            f"/v2/repository/{path}", content=json.dumps(body)
        )
        assert response.status_code == status, response.text
        assert gateway.client.get("/v2/models/affine/ready").status_code == 200


def test_statistics_of_batches_and_memory(stock: Any) -> None:
    def numbers() -> Any:
        (stats,) = stock.get_inference_statistics("affine", "1", headers=STATS)[
            "model_stats"
        ]
        by_size = {b["batch_size"]: b for b in stats["batch_stats"]}
        return by_size[3]["compute_infer"] if 3 in by_size else {"count": 0, "ns": 0}

    before = numbers()
    stock.infer("affine", [affine_input(np.ones((3, 4), np.float32))])
    after = numbers()
    assert after["count"] == before["count"] + 1
    assert after["ns"] > before["ns"]
    (stats,) = stock.get_inference_statistics("affine", headers=STATS)["model_stats"]
    (memory,) = stats["memory_usage"]
    assert (memory["type"], memory["id"]) == ("CPU", 0)
    assert memory["byte_size"] > 0


def test_statistics_are_restricted_here(stock: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        stock.get_inference_statistics("affine")
    assert caught.value.status() == "403"
    assert caught.value.message() == (
        "This API is restricted, expecting header 'x-stats'"
    )


def test_offline_twins_of_infer(stock: Any, gateway: ServedGateway) -> None:
    body, size = triton.InferenceServerClient.generate_request_body([affine_input()])
    headers = {"Inference-Header-Content-Length": str(size)}
    response = gateway.client.post(
        "/v2/models/affine/infer", content=body, headers=headers
    )
    result = triton.InferenceServerClient.parse_response_body(
        response.content,
        header_length=int(response.headers["inference-header-content-length"]),
    )
    np.testing.assert_array_equal(result.as_numpy("output"), ROW * 2 + 1)
    asked = [stock.async_infer("affine", [affine_input()]) for _ in range(3)]
    for request in asked:
        np.testing.assert_array_equal(
            request.get_result().as_numpy("output"), ROW * 2 + 1
        )
