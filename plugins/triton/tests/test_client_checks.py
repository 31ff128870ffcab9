"""The checks of Triton's own clients that once failed, row by row.

Others are elsewhere: closed shared memory and the input size limit in
`tests/conformance/test_triton_examples.py`, offsets out of bounds in
`tests/conformance/triton_examples/shared_memory_errors.py`, and datatypes that expand
in `tests/app/codec/test_oip_json.py`.

Covers: plugins/triton/src/popgate_triton/profile.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.triton.tests.folders import identity, write_config
from tests.app.served import ServedGateway
from tests.support import until

#: The longest delay that a model may have. No test waits for it.
MINUTE_US = 60_000_000
WAIT = 30.0
DELAYED = f"""
dynamic_batching {{
  preferred_batch_size: [ 4 ]
  max_queue_delay_microseconds: {MINUTE_US}
}}
"""
#: A request waits for more rows until its timeout, which it may set itself.
REJECTING = f"""
dynamic_batching {{
  preferred_batch_size: [ 4 ]
  max_queue_delay_microseconds: {MINUTE_US}
  default_queue_policy {{
    timeout_action: REJECT
    default_timeout_microseconds: 200000
    allow_timeout_override: true
  }}
}}
"""
BROKEN = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        raise pb_utils.TritonModelException("the model cannot start")

    def execute(self, requests):
        return []
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root: Path = tmp_path_factory.mktemp("models")
    identity(root, "shapes", more=DELAYED)
    identity(root, "rejecting", more=REJECTING)
    identity(root, "versions", more="version_policy { all {} }")
    first = root / "versions" / "1"
    for version in ("2", "3"):
        (root / "versions" / version).mkdir()
        model = root / "versions" / version / "model.onnx"
        model.write_bytes((first / "model.onnx").read_bytes())
    (root / "broken" / "1").mkdir(parents=True)
    (root / "broken" / "1" / "model.py").write_text(BROKEN)
    dims = "data_type: TYPE_FP32 dims: [ 1 ]"
    io = f'input {{ name: "X" {dims} }} output {{ name: "Y" {dims} }}'
    write_config(root, "broken", f'backend: "python" {io}')
    options = ["--error-statuses", "triton", "--model-control-mode", "explicit"]
    options += ["--load-model", "*", "--allow-python", "--trust-loopback"]
    with ServedGateway(root, *options) as gateway:
        gateway.wait_line("docs")
        yield gateway


def body(width: int = 1, **parameters: Any) -> dict[str, Any]:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, width]}
    return {"inputs": [{**tensor, "data": [1.0] * width}], "parameters": parameters}


def test_a_model_whose_initialize_fails(served: ServedGateway) -> None:
    for path in ("/v2/models/broken/infer", "/v2/models/broken/versions/1/infer"):
        answer = served.client.post(path, json=body())
        assert answer.status_code >= 400
        text = answer.json()["error"]
        assert text.startswith("Request for unknown model: 'broken' ")
        assert "is not at ready state" in text
        assert "the model cannot start" in text
    assert served.client.get("/v2/models/broken/ready").status_code != 200


def test_versions_that_come_and_go_while_clients_ask(served: ServedGateway) -> None:
    """Each request is answered, or refused with the words that the check looks for."""
    seen: list[httpx.Response] = []
    is_over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=served.url, trust_env=False) as client:
            while not is_over.is_set():
                path = f"/v2/models/versions/versions/{len(seen) % 3 + 1}/infer"
                seen.append(client.post(path, json=body()))

    def count(*, right: bool) -> int:
        return sum(answer.is_success is right for answer in seen)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    try:
        for _ in range(3):
            for verb, right in (("unload", False), ("load", True)):
                path = f"/v2/repository/models/versions/{verb}"
                assert served.client.post(path).status_code == 200
                most = count(right=right) + 1
                until(lambda r=right, m=most: count(right=r) > m)  # type: ignore[misc]
    finally:
        is_over.set()
        for thread in asking:
            thread.join()
    for answer in seen:
        if not answer.is_success:
            assert "is not at ready state" in answer.json()["error"]
    assert {answer.status_code for answer in seen} == {200, 503}


def test_a_request_of_another_shape_ends_the_wait_of_a_batch(
    served: ServedGateway,
) -> None:
    """Two requests of different shapes, fewer rows than preferred: the first is
    answered without the delay of a minute, and the second waits for its own.
    """

    def ask(width: int) -> httpx.Response:
        return served.client.post("/v2/models/shapes/infer", json=body(width))

    def waiting() -> int:
        metrics = served.client.get("/metrics").text
        name = 'nv_inference_pending_request_count{model="shapes",version="1"} '
        return int(float(metrics.partition(name)[2].partition("\n")[0]))

    with ThreadPoolExecutor(3) as threads:
        futures: list[Future[httpx.Response]] = []
        for width in (1, 2, 1):
            futures.append(threads.submit(ask, width))
            for number, future in enumerate(futures[:-1]):
                answer = future.result(WAIT)
                assert answer.status_code == 200, answer.text
                assert answer.json()["outputs"][0]["shape"] == [1, number % 2 + 1]
            until(lambda: waiting() == 1)
        # Three more rows of its shape make the last one's batch preferred.
        more = {"inputs": {"INPUT0": [[1.0], [1.0], [1.0]]}}
        assert served.client.post("/v2/models/shapes/infer", json=more).is_success
        assert futures[-1].result(WAIT).status_code == 200


@pytest.mark.parametrize("own", [{}, {"timeout": 100_000}])
def test_a_queue_policy_that_rejects(
    served: ServedGateway, own: dict[str, int]
) -> None:
    """At the default timeout of the policy, and at one that the request sets."""
    answer = served.client.post("/v2/models/rejecting/infer", json=body(**own))
    assert answer.status_code == 503
    assert answer.json()["error"] == "Request timeout expired"
