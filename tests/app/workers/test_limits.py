"""What bounds a server bounds all its workers together, wherever connections are.

Covers: app/http/connection_limit.py, app/observe/shared_totals.py.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from app.config.keys import digest_of
from tests.app.http.test_protocol import Wire, expected, request
from tests.app.http.test_transfers import big, fill
from tests.app.served import ServedGateway
from tests.app.workers.conftest import connect, infer, prefix
from tests.app.workers.test_workers import workers_of
from tests.support import until

MIB = 1 << 20
WORKERS = 4
CONNECTIONS = 40
#: A fourth of it is less than one request takes (`big`).
TRANSFERS = 48 * MIB
KEYS = f"""
anonymous = ["infer", "metadata", "manage", "metrics"]
[[key]]
name = "rated"
sha256 = "{digest_of(b"rated").hex()}"
requests_per_second = 0.01
[[key]]
name = "two"
sha256 = "{digest_of(b"two").hex()}"
concurrent = 2
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    fill(root)
    keys = root.parent / "keys-of-workers.toml"
    keys.write_text(KEYS)
    options = {
        "--workers": WORKERS,
        "--max-connections": CONNECTIONS,
        "--transfer-memory": TRANSFERS,
        "--keys": keys,
    }
    words = [str(word) for option in options.items() for word in option]
    with ServedGateway(root, *words) as found:
        supervisor = prefix(found.wait_ready().client.get("/v1/health/live"))
        found.client.close()
        seen: set[str] = set()

        def all_run() -> bool:
            with connect(found) as client:
                seen.add(prefix(infer(client)))
            return len(seen - {supervisor}) == WORKERS

        until(all_run)
        yield found


def asked(gateway: ServedGateway, key: str = "", model: str = "affine") -> int:
    """The status of a request on a connection of its own."""
    with connect(gateway) as client:
        if key:
            client.headers["X-API-Key"] = key
        rows = [[1.0] * 4] if model == "affine" else 30_000
        name = "input" if model == "affine" else "count"
        response = client.post(
            f"/v1/models/{model}/infer", json={"inputs": {name: rows}}
        )
        return response.status_code


def test_connections(gateway: ServedGateway) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(gateway)) for _ in range(CONNECTIONS)]
        for wire in wires:
            wire.send(request(1))
            assert wire.output() == expected(1)
        with Wire(gateway) as another:
            another.send(request(1))
            status, _, body = another.answer()
            assert (status, json.loads(body)["code"]) == (503, "too_many_connections")
        with connect(gateway) as client:
            assert client.get("/v1/health/live").status_code == 200
    until(lambda: asked(gateway) == 200)


def test_bodies_in_transit(gateway: ServedGateway) -> None:
    head = b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: x\r\n"
    head += b"Content-Length: %d\r\n\r\n" % (200 * MIB)
    with ExitStack() as stack:
        senders = [stack.enter_context(Wire(gateway)) for _ in range(6)]
        for sender in senders[:2]:
            sender.send(head, bytes(20 * MIB))
        for sender in senders[2:]:
            sender.send(head, bytes(20 * MIB))
            status, _, body = sender.answer()
            assert (status, json.loads(body)["code"]) == (503, "transfer_memory_full")
        # What one has that dies is had by nobody.
        for pid in workers_of(gateway):
            os.kill(pid, signal.SIGKILL)
        until(lambda: takes_large_bodies(gateway))


def takes_large_bodies(gateway: ServedGateway) -> bool:
    try:
        with Wire(gateway) as wire:
            wire.send(big())
            return wire.answer()[0] == 200
    except (ConnectionError, ValueError):  # its worker is being killed
        return False


def test_a_key_s_rate(gateway: ServedGateway) -> None:
    with ThreadPoolExecutor(8) as pool:
        statuses = Counter(pool.map(lambda _: asked(gateway, "rated"), range(24)))
    assert statuses == {200: 1, 429: 23}


def test_a_key_s_requests_in_flight(gateway: ServedGateway) -> None:
    with ThreadPoolExecutor(2) as pool, connect(gateway) as client:
        running = [pool.submit(asked, gateway, "two", "slow") for _ in range(2)]
        until(lambda: in_flight(gateway) == 2)
        assert [asked(gateway, "two") for _ in range(8)] == [429] * 8
        assert infer(client).status_code == 200
        assert [one.result() for one in running] == [200, 200]
    until(lambda: asked(gateway, "two") == 200)


def in_flight(gateway: ServedGateway) -> float:
    with connect(gateway) as client:
        text = client.get("/metrics").text
    start = 'popgate_requests_in_flight{model="slow",version="1"} '
    return float(text.partition(start)[2].partition("\n")[0])
