"""The protocol's extensions against a real server, with its stock clients."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.app.serving import ServedGateway
from tests.engine import models

ROW = np.array([[1, 2, 3, 4]], np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extensions")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[ServedGateway]:
    root = folder / "models"
    root.mkdir()
    models.affine(root / "affine.popef")
    (root / "affine").mkdir()
    (root / "affine" / "config.toml").write_text('labels = {output = "labels.txt"}')
    (root / "affine" / "labels.txt").write_text("zero\none\ntwo\n")
    trace = str(folder / "trace.json")
    with ServedGateway(root, "--trace-file", trace) as served:
        yield served.wait_ready()


@pytest.fixture
def stock(gateway: ServedGateway) -> Iterator[Any]:
    client = triton.InferenceServerClient(gateway.url.removeprefix("http://"))
    yield client
    client.close()


def affine_input(rows: Any = ROW) -> Any:
    tensor = triton.InferInput("input", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    return tensor


class TestLogging:
    DEFAULT = {  # noqa: RUF012
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }

    def test_changes_what_is_logged(self, stock: Any, gateway: ServedGateway) -> None:
        assert stock.get_log_settings() == self.DEFAULT
        url = "/v1/models/affine/load"
        gateway.client.post(url)
        gateway.wait_line("model affine is loaded")
        changed = stock.update_log_settings({"log_info": False})
        assert changed == {**self.DEFAULT, "log_info": False}
        gateway.client.post(url)
        stock.update_log_settings({"log_info": True, "log_format": "ISO8601"})
        gateway.client.post(url)
        line = gateway.wait_line("Z INFO ")
        assert line.split("Z ")[0].count("T") == 1
        told = [line for line in gateway.lines if "model affine is loaded" in line]
        assert len(told) == 2
        assert stock.update_log_settings({"log_format": "default"}) == self.DEFAULT

    @pytest.mark.parametrize(
        ("settings", "text"),
        [
            ({"log_file": "x"}, "log file location can not be updated"),
            ({"log_info": 1}, "non-boolean as boolean"),
            ({"log_verbose_level": -1}, "non-unsigned-integer as unsigned-integer"),
            ({"log_verbose_level": True}, "non-unsigned-integer as unsigned-integer"),
            ({"log_format": "odd"}, "invalid argument for log_format"),
            ({"log_inof": True}, "there is no log setting 'log_inof'"),
        ],
    )
    def test_refuses(self, stock: Any, settings: dict[str, Any], text: str) -> None:
        with pytest.raises(InferenceServerException, match=text):
            stock.update_log_settings({"log_warning": False, **settings})
        assert stock.get_log_settings() == self.DEFAULT


class TestTrace:
    @pytest.fixture
    def initial(self, folder: Path) -> dict[str, Any]:
        return {
            "trace_level": ["OFF"],
            "trace_rate": "1000",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": str(folder / "trace.json"),
            "trace_mode": "triton",
        }

    def test_traces_a_model(
        self, stock: Any, folder: Path, initial: dict[str, Any]
    ) -> None:
        assert stock.get_trace_settings() == initial
        assert stock.get_trace_settings("affine") == initial
        wanted = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "1"}
        changed = stock.update_trace_settings("affine", wanted)
        assert changed == {**initial, **wanted}
        assert stock.get_trace_settings() == initial
        for number in ("1", "2"):
            stock.infer("affine", [affine_input()], request_id=number)
        assert stock.get_trace_settings("affine")["trace_count"] == "0"
        head, body = json.loads((folder / "trace.json").read_text())
        assert head["model_name"] == "affine"
        assert (head["model_version"], head["request_id"]) == (1, "1")
        times = [stamp["ns"] for stamp in body["timestamps"]]
        assert times == sorted(times)
        cleared = dict.fromkeys(("trace_level", "trace_rate", "trace_count"))
        assert stock.update_trace_settings("affine", cleared) == initial

    def test_the_settings_of_a_version_are_the_models(
        self, gateway: ServedGateway, initial: dict[str, Any]
    ) -> None:
        path = "/v2/models/affine/versions/1/trace/setting"
        changed = gateway.client.post(path, json={"log_frequency": 5})
        assert changed.json() == {**initial, "log_frequency": "5"}
        model = gateway.client.get("/v2/models/affine/trace/setting").json()
        assert model == changed.json()
        gateway.client.post(path, json={"log_frequency": None})
        assert gateway.client.get(path).json() == initial

    @pytest.mark.parametrize(
        ("settings", "text"),
        [
            ({"trace_file": "x"}, "trace file location can not be updated"),
            ({"trace_level": ["SOME"]}, "trace_level must be a list"),
            ({"trace_level": []}, "trace_level must be a list"),
            ({"trace_rate": "0"}, "'trace_rate' must be a whole number of 1"),
            ({"trace_count": "many"}, "'trace_count' must be a whole number"),
            ({"log_frequency": True}, "'log_frequency' must be a whole number"),
            ({"trace_mode": "opentelemetry"}, "trace setting 'trace_mode'"),
            ({"odd": 1}, "trace setting 'odd'"),
        ],
    )
    def test_refuses(
        self, stock: Any, initial: dict[str, Any], settings: dict[str, Any], text: str
    ) -> None:
        with pytest.raises(InferenceServerException, match=text):
            stock.update_trace_settings(settings={"trace_rate": "2", **settings})
        assert stock.get_trace_settings() == initial

    def test_unknown_models(self, stock: Any, gateway: ServedGateway) -> None:
        with pytest.raises(InferenceServerException) as caught:
            stock.get_trace_settings("none")
        assert caught.value.message().startswith("Request for unknown model : none")
        assert caught.value.status() == "400"
        path = "/v2/models/affine/versions/7/trace/setting"
        assert gateway.client.get(path).status_code == 404


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


def test_asyncio_client(gateway: ServedGateway) -> None:
    async def ask() -> None:
        address = gateway.url.removeprefix("http://")
        async with triton_aio.InferenceServerClient(address) as client:
            assert await client.is_server_live()
            assert (await client.get_log_settings())["log_info"] is True
            assert (await client.get_trace_settings("affine"))["trace_rate"] == "1000"
            for coding in (None, "gzip", "deflate"):
                result = await client.infer(
                    "affine",
                    [affine_input()],
                    request_compression_algorithm=coding,
                    response_compression_algorithm=coding,
                )
                np.testing.assert_array_equal(result.as_numpy("output"), ROW * 2 + 1)

    asyncio.run(ask())
