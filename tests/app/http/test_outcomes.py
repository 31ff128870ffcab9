"""The line of a request in the access log, however it ended, for programs and people.

Covers nothing of its own: app/http/request_log.py, app/serving/call.py and
app/http/connection/protocol.py each tell of some of these.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from app.config.keys import digest_of
from tests.app.served import ServedGateway, add
from tests.engine import models
from tests.support import FOR_EVER, WAIT, until

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ROW = {"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}
WORK = {"inputs": {"count": FOR_EVER}}
LITTLE = {"inputs": {"count": 1}}
ENDLESS = """
class Endless:
    inputs = {"n": "INT32[1]"}
    outputs = {"i": "INT32[1]"}

    def __call__(self, n):
        import os
        i = 0
        while True:
            if i == n[0]:
                os._exit(1)
            yield {"i": [i]}
            i += 1
"""
KEYS = f"""
anonymous = ["metadata", "metrics"]

[[key]]
name = "shop"
sha256 = "{digest_of(b"shop").hex()}"
models = ["affine", "slow", "endless", "broken", "nobody"]

[[key]]
name = "slow-down"
sha256 = "{digest_of(b"slow-down").hex()}"
requests_per_second = 0.001
"""


@pytest.fixture(scope="module", params=["json", "text"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    add(root, "affine")
    add(root, "slow", models.slow, config="max_queue_size = 1\n")
    (root / "endless" / "1").mkdir(parents=True)
    (root / "endless" / "1" / "model.py").write_text(ENDLESS)
    add(root, "broken").write_bytes(b"no model")
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(KEYS)
    options = ["--keys", str(keys), "--log-format", request.param, "--allow-python"]
    options += ["--header-timeout", "1", "--upload-timeout", "1"]
    options += ["--max-body-size", "64KiB", "--run-timeout", "0"]
    with ServedGateway(root, *options) as gateway:
        gateway.client.headers["x-api-key"] = "shop"
        yield gateway.wait_ready()


def line_of(served: ServedGateway, request_id: str) -> dict[str, Any]:
    """The only line of the request with this id, once it is there."""

    def found() -> list[str]:
        named = (f'"request_id":"{request_id}"', f" id={request_id} ")
        return [line for line in list(served.lines) if any(n in line for n in named)]

    until(found, f"no line of {request_id}")
    (line,) = found()
    if line.startswith("{"):
        told = json.loads(line)
        assert isinstance(told, dict)
        return told
    # What a person reads is the same, and can be taken apart without guessing.
    _, _, rest = line.partition(" app.access: ")
    method, path, status, ms, unit, *words = shlex.split(rest)
    assert unit == "ms"
    fields: dict[str, Any] = dict(word.split("=", 1) for word in words)
    fields |= {"method": method, "path": path, "status": int(status)}
    fields["total_ms"] = float(ms)
    fields["level"] = re.split(r" +", line)[2].lower()
    return fields


def ask(
    served: ServedGateway, request_id: str, model: str, body: Any, **headers: str
) -> httpx.Response:
    mine = {"x-request-id": request_id, "traceparent": PARENT}
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    path = f"/v1/models/{model}/infer"
    content = body if isinstance(body, bytes) else json.dumps(body)
    return served.client.post(path, content=content, headers={**mine, **given})


def connect(served: ServedGateway) -> socket.socket:
    port = int(served.url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), WAIT)


def head(request_id: str, model: str, body: Any) -> tuple[bytes, bytes]:
    """A request as bytes: its head, and its body."""
    content = json.dumps(body).encode()
    lines = (
        f"POST /v1/models/{model}/infer HTTP/1.1",
        "host: localhost",
        "x-api-key: shop",
        f"x-request-id: {request_id}",
        f"content-length: {len(content)}",
    )
    return "\r\n".join((*lines, "", "")).encode(), content


def in_flight(served: ServedGateway) -> bool:
    text = served.client.get("/metrics").text
    return 'popgate_requests_in_flight{model="slow",version="1"} 1' in text


def no_key(served: ServedGateway, mine: str) -> int:
    return ask(served, mine, "affine", ROW, x_api_key="wrong").status_code


def other_model(served: ServedGateway, mine: str) -> int:
    return ask(served, mine, "python", ROW).status_code


def over_its_rate(served: ServedGateway, mine: str) -> int:
    ask(served, f"first-{mine}", "affine", ROW, x_api_key="slow-down")
    return ask(served, mine, "affine", ROW, x_api_key="slow-down").status_code


def bad_input(served: ServedGateway, mine: str) -> int:
    return ask(served, mine, "affine", b"{").status_code


def unknown(served: ServedGateway, mine: str) -> int:
    return ask(served, mine, "nobody", ROW).status_code


def too_large(served: ServedGateway, mine: str) -> int:
    return ask(served, mine, "affine", b" " * (1 << 17)).status_code


def not_loaded(served: ServedGateway, mine: str) -> int:
    return ask(served, mine, "broken", ROW).status_code


def too_late(served: ServedGateway, mine: str) -> int:
    return ask(served, mine, "slow", WORK, x_request_timeout="0.05").status_code


def stopped_body(served: ServedGateway, mine: str) -> int:
    with connect(served) as connection:
        connection.sendall(b"".join(head(mine, "affine", ROW))[:-3])
        return int(connection.recv(1 << 16).split()[1])


def stopped_head(served: ServedGateway, mine: str) -> int:
    with connect(served) as connection:
        connection.sendall(head(mine, "affine", ROW)[0][:-4])
        return int(connection.recv(1 << 16).split()[1])


def gone_while_it_ran(served: ServedGateway, mine: str) -> int:
    until(lambda: ask(served, f"first-{mine}", "slow", LITTLE).is_success)
    with connect(served) as connection:
        connection.sendall(b"".join(head(mine, "slow", WORK)))
        until(lambda: in_flight(served))
    return 499


def gone_while_it_sent(served: ServedGateway, mine: str) -> int:
    with connect(served) as connection:
        connection.sendall(b"".join(head(mine, "affine", ROW))[:-3])
        # Behind it, so that it has been read.
        served.client.get("/v1/health/live")
    return 499


def gone_between_chunks(served: ServedGateway, mine: str) -> int:
    begin, body = head(mine, "affine", ROW)
    chunked = re.sub(rb"content-length: \d+", b"transfer-encoding: chunked", begin)
    with connect(served) as connection:
        connection.sendall(chunked + b"%x\r\n%b\r\n" % (len(body), body))
        served.client.get("/v1/health/live")
    return 499


def full(served: ServedGateway, mine: str) -> int:
    until(lambda: ask(served, f"first-{mine}", "slow", LITTLE).is_success)
    with connect(served) as connection:
        connection.sendall(b"".join(head(f"before-{mine}", "slow", WORK)))
        until(lambda: in_flight(served))
        return ask(served, mine, "slow", WORK).status_code


def device_killed(served: ServedGateway, mine: str) -> int:
    # What was cancelled before may still fill the queue, of one.
    until(lambda: ask(served, f"before-{mine}", "slow", LITTLE).is_success)
    codes: list[int] = []
    asker = threading.Thread(
        target=lambda: codes.append(ask(served, mine, "slow", WORK).status_code)
    )
    asker.start()
    until(lambda: in_flight(served))
    devices = served.client.get("/v1/devices").json()["devices"]
    (pid,) = [d["pid"] for d in devices if d["id"].startswith("cpu:")]
    os.kill(pid, signal.SIGKILL)
    asker.join()
    served.until("/v1/health/ready", 200)
    return codes[0]


def stream(served: ServedGateway, mine: str, crash_at: int) -> Iterator[str]:
    body = {"inputs": {"n": [crash_at]}}
    headers = {"x-request-id": mine, "accept": "text/event-stream"}
    headers["traceparent"] = PARENT
    path = "/v1/models/endless/infer"
    with served.client.stream("POST", path, json=body, headers=headers) as response:
        assert response.status_code == 200
        yield from response.iter_lines()


def stream_left(served: ServedGateway, mine: str) -> int:
    lines = stream(served, mine, -1)
    assert next(lines).startswith("data: ")
    lines.close()  # type: ignore[attr-defined]
    return 499


def stream_killed(served: ServedGateway, mine: str) -> int:
    *_, last, _ = stream(served, mine, 3)
    assert json.loads(last.removeprefix("data: "))["request_id"] == mine
    served.until("/v1/health/ready", 200)
    return 503


#: What happens, the status on the line, the code, and whether the model is on it.
OUTCOMES: dict[str, tuple[Callable[[ServedGateway, str], int], int, str, str]] = {
    "wrong key": (no_key, 401, "api_key_wrong", ""),
    "other model": (other_model, 403, "key_not_allowed", ""),
    "over its rate": (over_its_rate, 429, "key_rate", ""),
    "bad input": (bad_input, 400, "malformed_body", "affine"),
    "unknown": (unknown, 404, "unknown_model", ""),
    "too large": (too_large, 413, "body_too_large", ""),
    "not loaded": (not_loaded, 503, "model_not_ready", ""),
    "too late": (too_late, 504, "deadline_exceeded", "slow"),
    "stopped body": (stopped_body, 408, "body_stopped", ""),
    "stopped head": (stopped_head, 408, "head_too_slow", ""),
    "gone while it ran": (gone_while_it_ran, 499, "cancelled", "slow"),
    "gone while it sent": (gone_while_it_sent, 499, "cancelled", ""),
    "gone between chunks": (gone_between_chunks, 499, "cancelled", ""),
    "full": (full, 429, "queue_full", "slow"),
    "device killed": (device_killed, 503, "device_lost", "slow"),
    "stream left": (stream_left, 499, "cancelled", "endless"),
    "stream killed": (stream_killed, 503, "device_lost", "endless"),
}


@pytest.mark.parametrize("how", list(OUTCOMES))
def test_a_line_for_every_outcome(served: ServedGateway, how: str) -> None:
    act, status, code, model = OUTCOMES[how]
    mine = how.replace(" ", "-")
    assert act(served, mine) == status
    line = line_of(served, mine)
    assert (line["status"], line["code"]) == (status, code)
    assert line.get("model", "") == model
    assert line["client"] == "127.0.0.1"
    assert line["error"]
    assert line["level"] == ("warning" if status >= 500 else "info")
    assert (line["method"], line["path"][:11]) == ("POST", "/v1/models/")
    refused = ("wrong key", "other model", "over its rate", "stopped head")
    # Those are told with their head, before anybody was let in.
    if how not in refused:
        assert line["key"] == "shop"
    at_once = ("wrong key", "over its rate")
    assert line["total_ms"] > 0 or how in at_once
    if "stopped" in how:
        assert line["total_ms"] >= 1000
    if "version" in line:  # for programs
        assert line["version"] == "1"


def failures_of(served: ServedGateway, outcome: str, model: str) -> int:
    """How many durations of this outcome the metrics have."""
    sample = (
        rf'popgate_failed_request_duration_seconds_count{{model="{model}",'
        rf'version="1",outcome="{outcome}"}} (\d+)'
    )
    found = re.search(sample, served.client.get("/metrics").text)
    return int(found[1]) if found else 0


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ("bad input", "invalid"),
        ("too late", "deadline"),
        ("gone while it ran", "cancelled"),
        ("full", "queue_full"),
        ("device killed", "device_lost"),
    ],
)
def test_the_duration_of_a_failed_request_is_kept_by_its_outcome(
    served: ServedGateway, how: str, outcome: str
) -> None:
    act, _, _, model = OUTCOMES[how]
    before = failures_of(served, outcome, model)
    act(served, f"timed-{outcome.replace('_', '-')}")
    until(lambda: failures_of(served, outcome, model) > before)
