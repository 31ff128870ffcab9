"""What waits and what runs, over HTTP: cancellation, deadlines, priorities, blame.

Covers: app/config/priorities.py.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.app.served import Serve, ServedGateway, add
from tests.engine import models
from tests.support import FOR_EVER, WAIT, until


@pytest.fixture(scope="module")
def gateway(serve: Serve) -> ServedGateway:
    return serve(fill, "--devices", "cpu:1")


LEVELS = """
priority_levels = 3
max_timeout = 0.5
[[priority]]
level = 1
timeout = 0.05
[[priority]]
level = 3
max_queue_size = 1
"""


def fill(root: Path) -> None:
    models.slow(root / "slow.popef")
    add(root, "fresh", models.slow, config="[warmup]\nenabled = false\n")
    models.slow(root / "levels.popef")
    (root / "levels").mkdir()
    (root / "levels" / "config.toml").write_text(LEVELS)
    models.gather(root / "gather.popef")


class Asking:
    """A request on a connection of its own, whose answer nobody reads yet."""

    def __init__(
        self,
        gateway: ServedGateway,
        model: str,
        body: object,
        *,
        chunked: bool = False,
        **headers: str,
    ) -> None:
        where = urlsplit(gateway.url)
        self.socket = socket.create_connection((where.hostname, where.port), WAIT)
        data = json.dumps(body).encode()
        head = f"POST /v1/models/{model}/infer HTTP/1.1\r\nHost: test\r\n"
        for name, value in headers.items():
            head += f"{name.replace('_', '-')}: {value}\r\n"
        if chunked:
            head += "Transfer-Encoding: chunked\r\n\r\n"
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
        else:
            head += f"Content-Length: {len(data)}\r\n\r\n"
        self.socket.sendall(head.encode() + data)

    def read(self) -> tuple[int, Any]:
        """Status and document of the answer."""
        with self.socket.makefile("rb") as stream:
            status = int(stream.readline().split()[1])
            headers = {}
            while line := stream.readline().strip():
                name, _, value = line.partition(b":")
                headers[name.lower()] = value
            body = json.loads(stream.read(int(headers[b"content-length"])))
        self.leave()
        return status, body

    def leave(self) -> None:
        self.socket.close()


def in_flight(gateway: ServedGateway) -> int:
    devices = gateway.client.get("/v1/devices").json()["devices"]
    return sum(device["in_flight"] for device in devices)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_leaves_frees_the_device(
    gateway: ServedGateway, chunked: bool
) -> None:
    body = {"inputs": {"count": FOR_EVER}}
    asking = Asking(gateway, "slow", body, chunked=chunked)
    until(lambda: in_flight(gateway) == 1)
    asking.leave()
    until(lambda: in_flight(gateway) == 0)
    assert len(gateway.infer("slow", count=1)["output"]) == 128 * 128


@pytest.mark.parametrize(
    ("parameters", "headers"),
    [({"timeout": 50_000}, {}), ({}, {"X-Request-Timeout": "0.05"})],
)
def test_a_deadline_frees_the_device(
    gateway: ServedGateway, parameters: dict[str, int], headers: dict[str, str]
) -> None:
    body = {"inputs": {"count": FOR_EVER}, "parameters": parameters}
    response = gateway.client.post("/v1/models/slow/infer", json=body, headers=headers)
    assert response.status_code == 504
    assert response.json()["code"] == "deadline_exceeded"
    assert response.json()["error"] == "Request timeout expired"
    until(lambda: in_flight(gateway) == 0)
    assert len(gateway.infer("slow", count=1)["output"]) == 128 * 128


def ask(gateway: ServedGateway, model: str, count: int, **parameters: int) -> Any:
    body = {"inputs": {"count": count}, "parameters": parameters}
    return gateway.client.post(f"/v1/models/{model}/infer", json=body)


@pytest.fixture
def busy(gateway: ServedGateway) -> Iterator[list[Asking]]:
    """Something that runs for ever, and what else a test lets wait."""
    asking = [Asking(gateway, "slow", {"inputs": {"count": FOR_EVER}})]
    until(lambda: in_flight(gateway) == 1)
    yield asking
    for one in asking:
        one.leave()
    until(lambda: in_flight(gateway) == 0)


def metric(gateway: ServedGateway, name: str, **labels: str) -> float:
    text = gateway.client.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"no {name} {labels}")


def test_metrics_tell_who_waits_from_who_runs(
    gateway: ServedGateway, busy: list[Asking]
) -> None:
    pending = partial(metric, gateway, "nv_inference_pending_request_count")
    busy += (Asking(gateway, "slow", {"inputs": {"count": 1}}) for _ in range(3))
    until(lambda: in_flight(gateway) == 4)
    until(lambda: pending(model="slow") == 3)
    assert metric(gateway, "popgate_requests_in_flight", model="slow") == 4
    assert pending(model="levels") == 0


def test_a_timeout_in_the_queue_is_a_rejection(
    gateway: ServedGateway, busy: list[Asking]
) -> None:
    failed = partial(metric, gateway, "nv_inference_request_failure_total")
    before = failed(model="fresh", reason="REJECTED")
    # It has never run: nothing is known of it, and nothing refused on a guess.
    late = ask(gateway, "fresh", 1, timeout=50_000)
    assert late.status_code == 504, late.text
    assert failed(model="fresh", reason="REJECTED") == before + 1


def test_what_cannot_finish_in_time_is_refused(gateway: ServedGateway) -> None:
    # So short that fifty end within the 60 s of a request on a busy machine, too.
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert ask(gateway, "slow", 1_000).status_code == 200
        took.append(time.monotonic() - began)
    body = {"inputs": {"count": 1_000}}
    failed = partial(metric, gateway, "nv_inference_request_failure_total")
    before = failed(model="slow", reason="REJECTED")
    for_ever = {"inputs": {"count": FOR_EVER}}
    with ExitStack() as stack:

        def put(what: object, count: int, in_all: int) -> list[Asking]:
            asked = [Asking(gateway, "slow", what) for _ in range(count)]
            for one in asked:
                stack.callback(one.leave)
            until(lambda: in_flight(gateway) == in_all)
            return asked

        # The service time is learned from the ten between two that do not end, so fifty
        # wait for as long as the test needs.
        (first,) = put(for_ever, 1, 1)
        put(body, 10, 11)
        put(for_ever, 1, 12)
        put(body, 50, 62)
        first.leave()
        until(lambda: in_flight(gateway) == 51)
        refused = ask(gateway, "slow", 1, timeout=round(5 * min(took) * 1e6))
    assert refused.status_code == 429
    assert failed(model="slow", reason="REJECTED") == before + 1
    assert refused.json()["code"] == "deadline_unreachable"
    assert int(refused.headers["retry-after"]) >= 1
    milliseconds = int(refused.headers["retry-after-ms"])
    assert 1 <= milliseconds <= int(refused.headers["retry-after"]) * 1000
    until(lambda: in_flight(gateway) == 0)
    assert ask(gateway, "slow", 1, timeout=20_000_000).status_code == 200


def test_timeouts_of_levels(gateway: ServedGateway, busy: list[Asking]) -> None:
    # Level 1 has one of its own; nobody gets more than the model's most.
    for parameters in ({"priority": 1}, {"priority": 2, "timeout": 60_000_000}):
        response = ask(gateway, "levels", 1, **parameters)
        assert response.status_code == 504


def test_a_level_has_a_queue_of_its_own(
    gateway: ServedGateway, busy: list[Asking]
) -> None:
    body = {"inputs": {"count": 1}, "parameters": {"priority": 3}}
    busy.append(Asking(gateway, "levels", body))
    until(lambda: in_flight(gateway) == 2)
    assert ask(gateway, "levels", 1, priority=3).json()["code"] == "queue_full"
    assert ask(gateway, "levels", 1, priority=2).status_code == 504


@pytest.mark.parametrize("priority", [-1, 1.5, "high", True])
def test_priorities_that_are_none(gateway: ServedGateway, priority: object) -> None:
    body = {"inputs": {"count": 1}, "parameters": {"priority": priority}}
    response = gateway.client.post("/v1/models/levels/infer", json=body)
    assert response.status_code == 400
    assert "'priority' must be an integer" in response.json()["error"]


def test_models_without_levels_take_any_priority(gateway: ServedGateway) -> None:
    assert ask(gateway, "slow", 1, priority=7).status_code == 200


def test_one_poisoned_request_among_a_hundred(
    gateway: ServedGateway, busy: list[Asking]
) -> None:
    where = [n % 10 for n in range(100)]
    where[37] = 99
    waiting = [Asking(gateway, "gather", {"inputs": {"index": [n]}}) for n in where]
    until(lambda: in_flight(gateway) == 101)
    busy[0].leave()
    answers = [one.read() for one in waiting]
    assert [n for n, (status, _) in enumerate(answers) if status != 200] == [37]
    assert answers[37][0] == 400
    for n, (status, body) in zip(where, answers, strict=True):
        if status == 200:
            assert body["outputs"][0]["data"] == [2.0 * n, 2.0 * n + 1]
