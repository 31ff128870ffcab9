"""What became of a request: one id on its answer, in its error and on its line, in
whatever way it came and however it ended."""

from __future__ import annotations

import io
import json
import socket
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest

from app.observe.access_log import MOST_A_SECOND
from app.plugins import ROUTES, plugin_names
from tests.app.served import Serve, ServedGateway, add
from tests.engine import models
from tests.support import WAIT, until

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
DOCUMENT = {"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}
NPY = {"content-type": "application/x-npy", "accept": "application/x-npy"}
CHAIN = """
    [[ensemble.step]]
    model = "affine"
    inputs = { input = "START" }
    outputs = { output = "END" }
"""
PYTHON = """
    from popgate import Model

    class Double(Model):
        inputs = {"x": "FP32[-1]"}
        outputs = {"y": "FP32[-1]", "id": "BYTES[1]", "parent": "BYTES[1]"}

        def load(self, context):
            self.context = context

        def __call__(self, x):
            if x[0] < 0:
                raise ValueError("negative")
            context = self.context
            told = {"id": [context.request_id], "parent": [context.traceparent]}
            return {"y": x * 2, **told}
"""
ADDS = """
    class Adds:
        inputs = {"x": "FP32[1]", "before": "FP32[1]"}
        outputs = {"after": "FP32[1]", "y": "FP32[1]"}

        def __call__(self, x, before):
            return {"after": x + before, "y": x + before}
"""
STATE = """
    [sequence]
    [[sequence.state]]
    input = "before"
    output = "after"
"""
COUNTS = """
    class Counts:
        inputs = {"n": "INT32[1]"}
        outputs = {"i": "INT32[1]"}

        def __call__(self, n):
            for i in range(n[0]):
                yield {"i": [i]}
            if n[0] > 2:
                raise ValueError("enough")
"""


def fill(root: Path) -> None:
    add(root, "affine")
    (root / "chain").mkdir()
    (root / "chain" / "config.toml").write_text(textwrap.dedent(CHAIN))
    for name, text in (("python", PYTHON), ("adds", ADDS), ("counts", COUNTS)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(textwrap.dedent(text))
    (root / "adds" / "config.toml").write_text(textwrap.dedent(STATE))


@pytest.fixture(scope="module")
def served(serve: Serve) -> ServedGateway:
    options = ["--access-log", "all", "--log-format", "json", "--allow-python"]
    return serve(fill, *options, "--max-body-size", "64KiB", "--metrics-port", "0")


def lines_of(served: ServedGateway, request_id: str) -> list[dict[str, Any]]:
    """The lines of the request with this id, once there are any."""

    def found() -> list[dict[str, Any]]:
        written = [line for line in list(served.lines) if line.startswith("{")]
        records = [json.loads(line) for line in written]
        return [
            record
            for record in records
            if record.get("request_id") == request_id
            and record["logger"] == "app.access"
        ]

    until(found, f"no line of {request_id}")
    return found()


Ask = Callable[[httpx.Client, dict[str, str]], httpx.Response]
INFER = "/v1/models/{}/infer"


def post(model: str, headers: dict[str, str] | None = None, **options: Any) -> Ask:
    path = INFER.format(model) if "/" not in model else model
    return lambda client, mine: client.post(
        path, headers={**(headers or {}), **mine}, **options
    )


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.ones((1, 4), np.float32))
    return file.getvalue()


def oip_binary() -> dict[str, Any]:
    """The protocol's binary form, as its stock clients write it."""
    raw = np.ones((1, 4), np.float32).tobytes()
    size = {"binary_data_size": len(raw)}
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 4], "parameters": size}
    head = json.dumps({"inputs": [tensor]}).encode()
    return {
        "headers": {"inference-header-content-length": str(len(head))},
        "content": head + raw,
    }


EVENTS = {"accept": "text/event-stream"}
MSGPACK = {"content-type": "application/msgpack", "accept": "application/msgpack"}
IN_SEQUENCE = {
    "inputs": {"x": [1.0]},
    "parameters": {"sequence_id": 5, "sequence_start": True, "sequence_end": True},
}
ANSWERED: dict[str, Ask] = {
    "json": post("affine", json=DOCUMENT),
    "npy": post("affine", NPY, content=npy()),
    "msgpack": post("affine", MSGPACK, content=msgpack.packb(DOCUMENT)),
    "binary": post("/v2/models/affine/infer", **oip_binary()),
    "chunks": lambda client, mine: client.post(
        INFER.format("affine"),
        content=iter([json.dumps(DOCUMENT).encode()]),
        headers=mine,
    ),
    "compressed": post("affine", {"accept-encoding": "gzip;q=1"}, json=DOCUMENT),
    "stream": post("affine", {"accept": "text/event-stream"}, json=DOCUMENT),
    "ensemble": post("chain", json={"inputs": {"START": [[1.0, 2.0, 3.0, 4.0]]}}),
    "python": post("python", json={"inputs": {"x": [1.0]}}),
    "python stream": post("counts", EVENTS, json={"inputs": {"n": [2]}}),
    "python sequence": post("adds", json=IN_SEQUENCE),
}
if plugin_names(ROUTES):  # forms of plugins
    ANSWERED |= {
        "generate": post("/v2/models/affine/generate", json={"input": [1, 2, 3, 4]}),
        "predict": post(
            "/v1/models/affine:predict", json={"instances": [[1.0, 2.0, 3.0, 4.0]]}
        ),
    }
FAILED: dict[str, tuple[Ask, int]] = {
    "bad input": (post("affine", json={"inputs": {"input": "x"}}), 400),
    "broken body": (post("affine", content=b"{"), 400),
    "stream": (
        post("affine", {"accept": "text/event-stream"}, json={"inputs": {}}), 400
    ),
    "ensemble": (post("chain", json={"inputs": {"START": [[1.0]]}}), 400),
    "python": (post("python", json={"inputs": {"x": [-1.0]}}), 500),
    "python input": (post("python", json={"inputs": {"x": ["a"]}}), 400),
    "sequence": (post("adds", json={"inputs": {"x": [1.0]}}), 400),
    "unknown model": (post("nobody", json=DOCUMENT), 404),
    "unknown path": (lambda client, mine: client.get("/none", headers=mine), 404),
    "method": (lambda client, mine: client.put("/metrics", headers=mine), 405),
    "too large": (post("affine", content=b"x" * (1 << 17)), 413),
}  # fmt: skip


@pytest.mark.parametrize("how", list(ANSWERED))
def test_an_answered_request(served: ServedGateway, how: str) -> None:
    given = f"given-{how}"
    headers = {"x-request-id": given, "traceparent": PARENT}
    response = ANSWERED[how](served.client, headers)
    assert response.status_code == 200, response.text
    assert response.headers.get_list("x-request-id") == [given]
    (line,) = lines_of(served, given)
    assert (line["status"], line["trace_id"]) == (200, PARENT.split("-")[1])
    assert line["path"] == response.request.url.path
    assert line["client"] == "127.0.0.1"
    assert line["batch_size"] >= 1
    assert line["compute_ms"] > 0
    assert line["device"].startswith("python:" if "python" in how else "cpu:")
    # And at /v1/requests, with the same phases.
    kept = served.client.get(f"/v1/requests/{given}").json()
    assert (kept["model"], kept["status"]) == (line["model"], 200)
    assert kept["phases"]["compute"] == line["compute_ms"]
    # And without one, it is made.
    response = ANSWERED[how](served.client, {})
    (made,) = response.headers.get_list("x-request-id")
    assert lines_of(served, made)[0]["model"] == line["model"]


@pytest.mark.parametrize("how", list(FAILED))
def test_a_failed_request(served: ServedGateway, how: str) -> None:
    ask, status = FAILED[how]
    given = {"x-request-id": f"failed-{how}"}
    for headers in (given, {}):
        response = ask(served.client, headers)
        assert response.status_code == status
        (shown,) = response.headers.get_list("x-request-id")
        assert shown == headers.get("x-request-id", shown)
        body = response.text.removeprefix("data: ")
        assert json.loads(body)["request_id"] == shown
        (line,) = lines_of(served, shown)
        assert (line["status"], line["code"]) == (status, json.loads(body)["code"])
        assert line["error"] == json.loads(body)["error"]
        kept = served.client.get(f"/v1/requests/{shown}").json()
        assert (kept["status"], kept["code"]) == (status, line["code"])
        assert kept["error"] == line["error"]


def test_a_model_is_told_whom_it_answers(served: ServedGateway) -> None:
    """Without spans, the client's own trace goes on as it came."""
    headers = {"x-request-id": "told-to-a-model", "traceparent": PARENT}
    body = {"inputs": {"x": [1.0]}}
    path = INFER.format("python")
    found = served.client.post(path, json=body, headers=headers).json()["outputs"]
    said = {tensor["name"]: tensor["data"] for tensor in found}
    assert (said["id"], said["parent"]) == (["told-to-a-model"], [PARENT])
    response = served.client.post(path, json=body, headers={"traceparent": "none"})
    said = {tensor["name"]: tensor["data"] for tensor in response.json()["outputs"]}
    assert said["id"] == [response.headers["x-request-id"]]
    assert said["parent"] == [""]


def test_a_stream_that_fails_in_the_middle(served: ServedGateway) -> None:
    headers = {"x-request-id": "fails-in-the-middle", **EVENTS}
    body = {"inputs": {"n": [3]}}
    response = served.client.post(INFER.format("counts"), json=body, headers=headers)
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "fails-in-the-middle"
    last = json.loads(response.text.strip().rpartition("data: ")[2])
    assert last["request_id"] == "fails-in-the-middle"
    (line,) = lines_of(served, "fails-in-the-middle")
    assert (line["status"], line["error"]) == (500, last["error"])
    kept = served.client.get("/v1/requests/fails-in-the-middle").json()
    assert (kept["status"], kept["error"]) == (500, last["error"])


def test_other_routes(served: ServedGateway) -> None:
    for ask in (served.client.get, served.client.head, served.client.options):
        response = ask("/v1/models", headers={"x-request-id": ask.__name__})
        assert response.headers["x-request-id"] == ask.__name__
        assert lines_of(served, ask.__name__)[0]["path"] == "/v1/models"
    port = served.wait_line("metrics").rpartition(":")[2].split("/")[0]
    response = httpx.get(f"http://127.0.0.1:{port}/none", trust_env=False)
    assert lines_of(served, response.headers["x-request-id"])[0]["status"] == 404


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"no HTTP at all\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 20_000 + b" HTTP/1.1\r\nx-request-id: e\r\n\r\n", 414),
    ],
)
def test_what_is_refused_before_it_is_a_request(
    served: ServedGateway, sent: bytes, status: int
) -> None:
    port = int(served.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), WAIT) as connection:
        connection.sendall(sent)
        answer = b""
        while chunk := connection.recv(1 << 16):
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().splitlines()[1:])
    assert int(head.split()[1]) == status
    shown = headers["x-request-id"]
    if status == 414:
        assert shown == "e"
    assert json.loads(body)["request_id"] == shown
    line = lines_of(served, shown)[-1]
    method = "-" if status == 400 else "GET"
    assert (line["status"], line["method"]) == (status, method)


def test_the_time_that_a_body_takes_is_told(served: ServedGateway) -> None:
    """Also of one that its client does not send to the end."""
    port = int(served.url.rpartition(":")[2])
    body = json.dumps(DOCUMENT).encode()

    def ask(request_id: str, count: int) -> None:
        head = (
            f"POST {INFER.format('affine')} HTTP/1.1\r\nhost: h\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", port), WAIT) as connection:
            connection.sendall(head.encode() + body[:5])
            served.client.get("/v1/health/live").raise_for_status()
            connection.sendall(body[5:count])
            if count == len(body):
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")

    ask("slowly", len(body))
    (line,) = lines_of(served, "slowly")
    assert line["receive_ms"] > 0
    ask("not all of it", len(body) - 1)
    (line,) = lines_of(served, "not all of it")
    assert (line["status"], line["total_ms"] > 0) == (499, True)


def test_probes_of_a_server_that_is_not_ready_are_no_failed_requests(
    tmp_path: Path,
) -> None:
    """Nor do they use up the lines of what fails in the same second."""
    with ServedGateway(tmp_path, "--devices", "cpu:2", "--strict-readiness") as served:
        served.wait_ready()
        add(tmp_path, "broken").write_bytes(b"no model")
        served.client.post("/v1/models/broken/load")
        served.until("/v1/health/ready", 503)
        for _ in range(MOST_A_SECOND + 10):
            assert served.client.get("/v1/health/ready").status_code == 503
        missing = served.client.get("/none")
        served.wait_line(missing.headers["x-request-id"])
        assert not any("/health/ready" in line for line in served.lines)


def test_by_default_a_400_leaves_a_line_and_an_answer_none(tmp_path: Path) -> None:
    add(tmp_path, "affine", models.affine)
    with ServedGateway(tmp_path) as served:
        served.wait_ready()
        served.infer("affine", input=[[1.0, 2.0, 3.0, 4.0]])
        bad = served.client.post(INFER.format("affine"), content=b"{")
        line = served.wait_line(bad.headers["x-request-id"])
        assert "POST /v1/models/affine/infer 400 " in line
        assert "code=malformed_body" in line
        assert not any(" 200 " in line for line in served.lines)
