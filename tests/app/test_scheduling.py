"""What waits and what runs, over HTTP: cancellation, deadlines, priorities, blame."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.app.serving import WAIT, ServedGateway
from tests.engine import models

#: Hours of work: a test that waits for it never ends.
FOR_EVER = 1_000_000_000


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        threading.Event().wait(0.005)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("scheduled")
    fill(root)
    with ServedGateway(root, "--devices", "cpu:1") as served:
        yield served.wait_ready()


def fill(root: Path) -> None:
    models.slow(root / "slow.popef")


class Asking:
    """A request on a connection of its own, whose answer nobody reads yet."""

    def __init__(
        self, gateway: ServedGateway, model: str, body: object, *, chunked: bool = False
    ) -> None:
        where = urlsplit(gateway.url)
        self.socket = socket.create_connection((where.hostname, where.port), WAIT)
        data = json.dumps(body).encode()
        head = f"POST /v1/models/{model}/infer HTTP/1.1\r\nHost: test\r\n"
        if chunked:
            head += "Transfer-Encoding: chunked\r\n\r\n"
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
        else:
            head += f"Content-Length: {len(data)}\r\n\r\n"
        self.socket.sendall(head.encode() + data)

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
    until(lambda: in_flight(gateway) == 0)
    assert len(gateway.infer("slow", count=1)["output"]) == 128 * 128
