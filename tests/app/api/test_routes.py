"""Every operation beside inference, over real HTTP.

Covers: app/api/dependencies.py, app/api/describe.py, app/api/examples.py,
app/api/request_bodies.py, app/api/delegation.py, app/api/routes/health.py,
app/api/routes/infer.py, app/api/routes/models.py, app/api/routes/oip.py,
app/api/schemas.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from app.about import VERSION
from app.api.examples import example_request
from app.spec import ModelSpec, TensorSpec
from tests.app.served import ServedGateway

ERROR_PATHS = [
    ("GET", "/nothing", 404, "not_found"),
    ("GET", "/v1/models/none", 404, "unknown_model"),
    ("GET", "/v1/models/many/versions/9", 404, "unknown_model"),
    ("GET", "/v1/models/none/stats", 404, "unknown_model"),
    ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ("GET", "/v1/models/affine/infer", 405, "method_not_allowed"),
    ("GET", "/v2/models/none", 404, "unknown_model"),
    ("GET", "/v2/models/none/ready", 404, "unknown_model"),
    ("GET", "/v2/models/broken", 503, "model_not_ready"),
    ("GET", "/v2/models/broken/ready", 503, "model_not_ready"),
    ("GET", "/v2/models/many/versions/0", 404, "unknown_model"),
    ("GET", "/v2/models/many/versions/3/stats", 404, "unknown_model"),
    ("POST", "/v1/models/none/infer", 404, "unknown_model"),
    ("POST", "/v1/models/broken/infer", 503, "model_not_ready"),
    ("POST", "/v1/models/none/load", 404, "unknown_model"),
    ("POST", "/v1/models/none/unload", 404, "unknown_model"),
    ("POST", "/v1/models/..%2Fbroken/load", 404, "not_found"),
    ("POST", "/v2/repository/models/%2E%2E/load", 404, "load_failed"),
    ("POST", "/v2/repository/models/none/unload", 404, "unload_failed"),
    ("GET", "/docs/../../etc/passwd", 404, "not_found"),
    ("GET", "/docs/redoc.standalone.js", 404, "not_found"),
]


@pytest.mark.parametrize(("verb", "path", "status", "code"), ERROR_PATHS)
def test_errors_have_one_form(
    gateway: ServedGateway, verb: str, path: str, status: int, code: str
) -> None:
    response = gateway.client.request(verb, path)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) - {"request_id"} == {"error", "code", "help"}
    assert body["code"] == code
    assert body["error"]


def get(gateway: ServedGateway, path: str) -> Any:
    response = gateway.client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


def test_health(gateway: ServedGateway) -> None:
    for version in ("v1", "v2"):
        assert get(gateway, f"/{version}/health/live") == {"live": True}
        ready = get(gateway, f"/{version}/health/ready")
        assert ready["ready"] is True
        assert list(ready["failed"]) == ["broken"]
        assert "not a PopGate container" in ready["failed"]["broken"]


def test_model_list(gateway: ServedGateway) -> None:
    listed = {m["name"]: m for m in get(gateway, "/v1/models")["models"]}
    assert sorted(listed) == [
        "affine", "broken", "gather", "many", "text", "weighted",
    ]  # fmt: skip
    assert listed["affine"]["state"] == "READY"
    assert listed["broken"]["state"] == "UNAVAILABLE"
    assert "broken.popef" in listed["broken"]["reason"]
    assert listed["many"]["version"] == "2"
    assert [v["version"] for v in listed["many"]["versions"]] == ["1", "2"]


def test_model_details(gateway: ServedGateway) -> None:
    details = get(gateway, "/v1/models/affine")
    tensor = {"name": "input", "datatype": "FP32", "shape": [-1, 4]}
    assert details["inputs"] == [tensor]
    assert details["outputs"] == [{**tensor, "name": "output"}]
    assert details["batching"] is True
    assert details["max_batch_size"] > 1
    first = get(gateway, "/v1/models/many/versions/1")
    assert (first["version"], first["batching"]) == ("1", False)
    assert first["url"] == "/v1/models/many/versions/1/infer"
    assert get(gateway, "/v1/models/broken")["inputs"] == []


@pytest.mark.parametrize("name", ["affine", "text", "weighted", "gather", "many"])
def test_the_example_of_a_model_works(gateway: ServedGateway, name: str) -> None:
    example = get(gateway, f"/v1/models/{name}")["example"]
    response = gateway.client.post(f"/v1/models/{name}/infer", json=example)
    assert response.status_code == 200, response.text


def test_an_input_of_no_elements_and_many_rows_has_no_example() -> None:
    """Its lists alone would take memory without bound."""
    shape = (10_000_000, 0)
    spec = ModelSpec("m", "1", (TensorSpec.make("x", "FP32", shape),), ())
    assert example_request(spec) is None
    few = ModelSpec("m", "1", (TensorSpec.make("x", "FP32", (2, 0)),), ())
    assert example_request(few) == {"inputs": {"x": [[], []]}}


def test_versions_answer_on_their_own(gateway: ServedGateway) -> None:
    rows = [[1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0]]
    assert (
        gateway.infer("many/versions/1", input=rows)["output"] == [-1.0] * 4 + [1.0] * 4
    )
    twice = (np.array(rows) * 2 + 1).reshape(-1).tolist()
    assert gateway.infer("many/versions/2", input=rows)["output"] == twice
    assert gateway.infer("many", input=rows)["output"] == twice


def test_devices(gateway: ServedGateway) -> None:
    (device,) = get(gateway, "/v1/devices")["devices"]
    assert device["id"] == "cpu:0"
    assert device["state"] == "ready"
    assert device["pid"] > 0
    assert device["models"] == 6
    assert device["restarts"] == 0


def test_stats_count_requests(gateway: ServedGateway) -> None:
    def numbers() -> Any:
        (stats,) = get(gateway, "/v1/models/gather/stats")["model_stats"]
        return stats

    before = numbers()
    gateway.infer("gather", index=[0, 1])
    bad = gateway.client.post("/v1/models/gather/infer", json={"inputs": {"x": 1}})
    assert bad.status_code == 400
    after = numbers()
    assert after["inference_count"] > before["inference_count"]
    for kind in ("success", "fail"):
        old, new = before["inference_stats"][kind], after["inference_stats"][kind]
        assert new["count"] == old["count"] + 1
        assert new["ns"] > old["ns"]
    stats = get(gateway, "/v2/models/many/versions/1/stats")["model_stats"]
    assert [(s["name"], s["version"]) for s in stats] == [("many", "1")]
    names = {s["name"] for s in get(gateway, "/v2/models/stats")["model_stats"]}
    assert names == {"affine", "gather", "many", "text", "weighted"}


def test_metrics_are_prometheus_text(gateway: ServedGateway) -> None:
    gateway.infer("affine", input=[[1, 2, 3, 4]])
    response = gateway.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in text_string_to_metric_families(response.text)}
    assert families["popgate_ready"].samples[0].value == 1
    assert families["popgate_request_duration_seconds"].type == "histogram"
    devices = families["popgate_device_up"].samples
    assert [(s.labels, s.value) for s in devices] == [({"device": "cpu:0"}, 1)]
    assert 'nv_inference_count{model="affine",version="1"}' in response.text
    used, total = (
        families[f"nv_cpu_memory_{n}_bytes"].samples[0] for n in ("used", "total")
    )
    assert 0 < used.value < total.value
    assert used.labels == total.labels == {}
    assert 0 <= families["nv_cpu_utilization"].samples[0].value <= 1
    assert families["process_resident_memory_bytes"].samples[0].value > 1 << 20
    states = {s.labels["state"]: s.value for s in families["popgate_models"].samples}
    assert {k for k, v in states.items() if v} == {"READY", "UNAVAILABLE"}
    assert (states["READY"], states["UNAVAILABLE"]) == (5, 1)


def test_nothing_but_inference_is_compressed(gateway: ServedGateway) -> None:
    headers = {"accept-encoding": "gzip, deflate"}
    for path in ("/v2", "/metrics", "/v1/models", "/openapi.json", "/nothing"):
        response = gateway.client.get(path, headers=headers)
        assert "content-encoding" not in response.headers


@pytest.fixture
def stock(gateway: ServedGateway) -> Any:
    client = triton.InferenceServerClient(gateway.url.removeprefix("http://"))
    yield client
    client.close()


def test_stock_client(gateway: ServedGateway, stock: Any) -> None:
    assert stock.is_server_live()
    assert stock.is_server_ready()
    assert stock.is_model_ready("affine")
    assert stock.is_model_ready("many", "1")
    assert not stock.is_model_ready("broken")
    assert not stock.is_model_ready("none")
    server = stock.get_server_metadata()
    assert (server["name"], server["version"]) == ("tester", VERSION)
    assert "binary_tensor_data" in server["extensions"]
    metadata = stock.get_model_metadata("many", "1")
    assert metadata["versions"] == ["1", "2"]
    assert metadata["inputs"] == [
        {"name": "input", "datatype": "FP32", "shape": [-1, 4]}
    ]
    index = {(e["name"], e["version"]): e for e in stock.get_model_repository_index()}
    assert index["many", "1"]["state"] == "READY"
    assert index["broken", "1"]["state"] == "UNAVAILABLE"
    assert "container" in index["broken", "1"]["reason"]
    (stats,) = stock.get_inference_statistics("affine")["model_stats"]
    assert stats["version"] == "1"


def test_stock_client_infers(stock: Any) -> None:
    data = np.arange(8, dtype=np.float32).reshape(2, 4)
    tensor = triton.InferInput("input", [2, 4], "FP32")
    tensor.set_data_from_numpy(data)
    result = stock.infer("affine", [tensor], request_id="7")
    np.testing.assert_array_equal(result.as_numpy("output"), data * 2 + 1)
    assert result.get_response()["id"] == "7"


def test_index_filters(gateway: ServedGateway) -> None:
    def index(body: str) -> Any:
        # Stock clients send no content type, or a wrong one.
        headers = {"content-type": "application/octet-stream"}
        return gateway.client.post(
            "/v2/repository/index", content=body, headers=headers
        )

    assert len(index("").json()) == 7
    assert len(index("{}").json()) == 7
    assert {e["state"] for e in index('{"ready": true}').json()} == {"READY"}
    nested = '{"ready": ' + "[" * 250_000 + "]" * 250_000 + "}"
    for bad, text in (
        ('{"ready": 1}', "Invalid value for 'ready': expected a boolean"),
        (nested, "Invalid value for 'ready': expected a boolean: JSON nesting depth"),
        ("{", "failed to parse the request JSON buffer"),
        ("[]", "expected a JSON object"),
    ):
        response = index(bad)
        assert response.status_code == 400
        assert text in response.json()["error"]
    big = index(" " * (1 << 21))
    assert big.status_code == 413


def test_query_strings_are_ignored(gateway: ServedGateway) -> None:
    assert get(gateway, "/v2/health/live?x=1") == {"live": True}


def test_shared_memory_is_off_by_default(gateway: ServedGateway, stock: Any) -> None:
    assert "system_shared_memory" not in stock.get_server_metadata()["extensions"]
    assert stock.get_system_shared_memory_status() == []
    stock.unregister_system_shared_memory()
    tensor = triton.InferInput("input", [1, 4], "FP32")
    tensor.set_shared_memory("io", 16)
    calls: list[Callable[[], object]] = [
        lambda: stock.register_system_shared_memory("io", "/key", 16),
        lambda: stock.infer("affine", [tensor]),
    ]
    for call in calls:
        with pytest.raises(
            InferenceServerException, match="--allow-shared-memory"
        ) as e:
            call()
        assert e.value.status() == "501"


def test_the_words_of_a_version_that_is_not_ready(gateway: ServedGateway) -> None:
    unready = "Request for unknown model: 'broken' "
    for path, words in (
        ("broken/infer", "has no available versions: version 1: "),
        ("broken/versions/1/infer", "version 1 is not at ready state: "),
        ("broken/ready", "has no available versions: "),
        ("broken", "has no available versions: "),
        ("broken/versions/1", "version 1 is not at ready state: "),
    ):
        verb = "POST" if path.endswith("infer") else "GET"
        answer = gateway.client.request(verb, f"/v2/models/{path}")
        assert answer.status_code == 503
        assert answer.json()["error"].startswith(unready + words)
    answer = gateway.client.post("/v2/models/broken/versions/7/infer")
    assert (answer.status_code, answer.json()["error"]) == (
        404,
        (
            "Request for unknown model: 'broken' version 7 is not found (it is not at "
            "ready state)"
        ),
    )


def test_shared_memory_that_is_not_allowed(gateway: ServedGateway) -> None:
    answer = gateway.client.post(
        "/v2/systemsharedmemory/region/x/register", json={"key": "k", "byte_size": 1}
    )
    assert answer.status_code == 501
    assert answer.json()["error"].startswith("Client shared memory is disabled")
    assert gateway.client.post("/v2/systemsharedmemory/unregister").status_code == 200
