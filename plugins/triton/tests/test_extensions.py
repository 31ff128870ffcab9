"""The trace and log extensions on a real server, asked by the stock clients.

Covers: app/observe/tracing.py, plugins/triton/src/popgate_triton/log_routes.py,
plugins/triton/src/popgate_triton/schemas.py,
plugins/triton/src/popgate_triton/trace_routes.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tests.app.api.test_asyncio_client import run
from tests.app.served import ServedGateway
from tests.support import until

# The spans that Triton's trace summary adds up.
SPANS = (
    ("HTTP_RECV_START", "HTTP_RECV_END"),
    ("HTTP_RECV_START", "HTTP_SEND_END"),
    ("HTTP_SEND_START", "HTTP_SEND_END"),
    ("REQUEST_START", "REQUEST_END"),
    ("QUEUE_START", "COMPUTE_START"),
    ("COMPUTE_START", "COMPUTE_INPUT_END"),
    ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    ("COMPUTE_OUTPUT_START", "COMPUTE_END"),
)
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
        url, before = "/v1/models/affine/load", len(gateway.lines)

        def told() -> list[str]:
            return [x for x in gateway.lines[before:] if "loaded model 'affine'" in x]

        gateway.client.post(url)
        until(lambda: len(told()) == 1)
        changed = stock.update_log_settings({"log_info": False})
        assert changed == {**self.DEFAULT, "log_info": False}
        gateway.client.post(url)
        stock.update_log_settings({"log_info": True, "log_format": "ISO8601"})
        gateway.client.post(url)
        until(lambda: len(told()) == 2)
        time, found, _ = told()[1].partition("Z INFO ")
        assert found
        assert time.count("T") == 1
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

    @pytest.mark.parametrize("way", ["short", "gzip", "events", "generate"])
    def test_triton_tools_can_sum_up_what_is_traced(
        self, stock: Any, gateway: ServedGateway, folder: Path, way: str
    ) -> None:
        """What they ask of a trace: the ends of every span, and datatypes by name."""
        both = ["TIMESTAMPS", "TENSORS"]
        wanted = {"trace_level": both, "trace_rate": "1", "trace_count": "1"}
        stock.update_trace_settings("affine", wanted)
        path, headers = "/v2/models/affine/infer", {"accept-encoding": "identity"}
        body: dict[str, Any] = {"inputs": {"input": [1, 2, 3, 4]}, "id": way}
        if way == "gzip":
            headers = {"accept-encoding": "gzip"}
        elif way == "events":
            headers = {"accept": "text/event-stream"}
        elif way == "generate":
            path = "/v2/models/affine/generate"
            body = {**body.pop("inputs"), "id": way}
        response = gateway.client.post(path, json=body, headers=headers)
        assert response.status_code == 200, response.text
        assert stock.get_trace_settings("affine")["trace_count"] == "0"
        traces = json.loads((folder / "trace.json").read_text())
        number = next(t["id"] for t in traces if t.get("request_id") == way)
        parts = [t for t in traces if t["id"] == number]
        stamps = {s["name"]: s["ns"] for t in parts for s in t.get("timestamps", ())}
        for start, end in SPANS:
            assert stamps[start] <= stamps[end]
        tensors = [t["tensor"] for t in parts if "tensor" in t]
        names = ("input", "output")
        assert {t["name"]: t["dtype"] for t in tensors} == dict.fromkeys(names, "FP32")
        for tensor in tensors:
            dtype = triton_to_np_dtype(tensor["dtype"])
            values = np.array([float(v) for v in tensor["data"].split(",")], dtype)
            values.reshape([int(n) for n in tensor["shape"].split(",")])
        stock.update_trace_settings("affine", dict.fromkeys(wanted))

    def test_a_rate_may_be_large(self, stock: Any) -> None:
        changed = stock.update_trace_settings("affine", {"trace_rate": "10000000000"})
        assert changed["trace_rate"] == "10000000000"
        stock.update_trace_settings("affine", {"trace_rate": None})

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
            ({"trace_rate": "0"}, "whole number from 1 to 9007199254740991, got '0'"),
            ({"trace_rate": "1" + 16 * "0"}, "'trace_rate' must be a whole number"),
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
        assert caught.value.status() == "404"
        path = "/v2/models/affine/versions/7/trace/setting"
        assert gateway.client.get(path).status_code == 404


def test_settings(extended: ServedGateway) -> None:
    async def ask(client: Any) -> None:
        assert (await client.get_log_settings())["log_info"] is True
        changed = await client.update_log_settings({"log_verbose_level": 0})
        assert changed == await client.get_log_settings()
        with pytest.raises(InferenceServerException, match="can not be updated"):
            await client.update_log_settings({"log_file": "x"})
        for model in ("", "affine"):
            changed = await client.update_trace_settings(model, {"trace_rate": "7"})
            assert changed == await client.get_trace_settings(model)
            assert changed["trace_rate"] == "7"
            changed = await client.update_trace_settings(model, {"trace_rate": None})
            assert changed["trace_rate"] == "1000"

    run(extended, ask)
