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
import numpy as np
import pytest

from app.observe.access_log import MOST_A_SECOND
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
        outputs = {"y": "FP32[-1]"}

        def __call__(self, x):
            return {"y": x * 2}
"""


def fill(root: Path) -> None:
    add(root, "affine")
    (root / "chain").mkdir()
    (root / "chain" / "config.toml").write_text(textwrap.dedent(CHAIN))
    (root / "python" / "1").mkdir(parents=True)
    (root / "python" / "1" / "model.py").write_text(textwrap.dedent(PYTHON))


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


ANSWERED: dict[str, Ask] = {
    "json": post("affine", json=DOCUMENT),
    "npy": post("affine", NPY, content=npy()),
    "compressed": post("affine", {"accept-encoding": "gzip;q=1"}, json=DOCUMENT),
    "stream": post("affine", {"accept": "text/event-stream"}, json=DOCUMENT),
    "generate": post("/v2/models/affine/generate", json={"input": [1, 2, 3, 4]}),
    "predict": post(
        "/v1/models/affine:predict", json={"instances": [[1.0, 2.0, 3.0, 4.0]]}
    ),
    "ensemble": post("chain", json={"inputs": {"START": [[1.0, 2.0, 3.0, 4.0]]}}),
    "python": post("python", json={"inputs": {"x": [1.0]}}),
}
FAILED: dict[str, tuple[Ask, int]] = {
    "bad input": (post("affine", json={"inputs": {"input": "x"}}), 400),
    "broken body": (post("affine", content=b"{"), 400),
    "stream": (
        post("affine", {"accept": "text/event-stream"}, json={"inputs": {}}), 400
    ),
    "ensemble": (post("chain", json={"inputs": {"START": [[1.0]]}}), 400),
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
    assert line["client"] == "127.0.0.1"
    assert line["batch_size"] >= 1
    assert line["compute_ms"] > 0
    assert line["device"].startswith("python:" if how == "python" else "cpu:")
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
    assert lines_of(served, shown)[-1]["status"] == status


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
