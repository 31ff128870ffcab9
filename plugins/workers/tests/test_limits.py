"""What bounds a server bounds all its workers together, wherever connections are.

Covers: app/http/connection_limit.py.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from app.config.keys import digest_of
from plugins.workers.tests.conftest import ROWS, connect, infer, prefix
from tests.app.http.connection.test_protocol import Wire, expected, request
from tests.app.http.connection.test_transfers import big, fill
from tests.app.served import ServedGateway
from tests.support import FOR_EVER, WAIT, until

MIB = 1 << 20
WORKERS = 4
CONNECTIONS = 40
#: A fourth of it is less than one request takes (`big`).
TRANSFERS = 48 * MIB
KEYS = f"""
anonymous = ["infer", "metadata", "manage", "metrics", "pages"]
[[key]]
name = "rated"
sha256 = "{digest_of(b"rated").hex()}"
requests_per_second = 0.01
[[key]]
name = "two"
sha256 = "{digest_of(b"two").hex()}"
concurrent = 2
[[key]]
name = "heavy"
sha256 = "{digest_of(b"heavy").hex()}"
weight = 6
[[key]]
name = "light"
sha256 = "{digest_of(b"light").hex()}"
weight = 2
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
        "--log-level": "debug",
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
        # What a system still holds for a busy worker would be counted after the next.
        until(lambda: sample(gateway, "popgate_transfer_memory_bytes") >= 40 * MIB)
        for sender in senders[2:]:
            sender.send(head, bytes(20 * MIB))
            status, _, body = sender.answer()
            assert (status, json.loads(body)["code"]) == (503, "transfer_memory_full")
        # What one has that dies is had by nobody.
        for pid in gateway.workers():
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


def test_the_weight_of_keys(gateway: ServedGateway) -> None:
    """In the order in which a backlog is served: one comes by one worker, the other by
    all of them, and has no more of the device for it."""
    with ExitStack() as stack:
        light: dict[str, list[HTTPConnection]] = {}
        heavy: list[HTTPConnection] = []
        while (
            len(heavy) < 18 or len(light) < WORKERS or min(map(len, light.values())) < 3
        ):
            worker, connection = opened(gateway)
            stack.callback(connection.close)
            found = light.setdefault(worker, [])
            if len(found) < 3:
                found.append(connection)
            elif worker == next(iter(light)) and len(heavy) < 18:
                heavy.append(connection)
            else:
                connection.close()
        # The first of each wait with all others, and have their lines opened.
        firsts = [(heavy[0], "heavy"), *((some[0], "light") for some in light.values())]
        for connection, key in firsts:
            ask(connection, key, 1)
            assert connection.getresponse().read()
        until(lambda: sum("line of weight" in a for a in gateway.lines) == len(firsts))
        _, blocking = opened(gateway)
        stack.callback(blocking.close)
        ask(blocking, "", FOR_EVER)
        until(lambda: in_flight(gateway) == 1)
        asking = [(one, "light") for some in light.values() for one in some]
        asking += [(one, "heavy") for one in heavy]
        for connection, key in asking:
            ask(connection, key, 300, key)
        until(lambda: in_flight(gateway) == 1 + len(asking))
        blocking.close()
        assert {one.getresponse().status for one, _ in asking} == {200}
    with connect(gateway) as client:
        answered = client.get("/v1/requests?limit=200").json()["answered"]
    # A worker that has no core for a moment records its answers late. So the order is
    # that in which the device ended their runs, in milliseconds.
    runs = sorted(
        (one["at"] * 1e3 - one["phases"]["encode"] - one["phases"]["wake"], one["id"],
         one["phases"]["compute"])
        for one in answered
        if one["id"] in ("light", "heavy")
    )  # fmt: skip
    assert len(runs) == len(asking)
    # While both wait, they differ by at most one run. Weights divide the device's time,
    # and a run takes longer while the device has no core.
    heavy_ended = max(i for i, (_, name, _) in enumerate(runs) if name == "heavy")
    used = {"heavy": 0.0, "light": 0.0}
    for _, name, took in runs[: heavy_ended + 1]:
        used[name] += took / (6 if name == "heavy" else 2)
    longest = max(took for *_, took in runs) / 2
    assert abs(used["heavy"] - used["light"]) <= longest + 0.1 * used["heavy"], runs


def opened(gateway: ServedGateway) -> tuple[str, HTTPConnection]:
    """A connection, and which worker has it."""
    where = urlsplit(gateway.url)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=WAIT)
    connection.request("POST", "/v1/models/affine/infer", json.dumps(ROWS))
    response = connection.getresponse()
    assert response.read()
    return response.headers["x-request-id"].partition("-")[0], connection


def ask(connection: HTTPConnection, key: str, count: int, name: str = "") -> None:
    """Send a request that takes so long, and wait for nothing."""
    body = json.dumps({"inputs": {"count": count}})
    headers = {"X-API-Key": key, "X-Request-Id": name}
    given = {name: value for name, value in headers.items() if value}
    connection.request("POST", "/v1/models/slow/infer", body, given)


def in_flight(gateway: ServedGateway) -> float:
    return sample(gateway, 'popgate_requests_in_flight{model="slow",version="1"}')


def sample(gateway: ServedGateway, name: str) -> float:
    with connect(gateway) as client:
        text = client.get("/metrics").text
    return float(text.partition(f"\n{name} ")[2].partition("\n")[0])
