"""Who has to go, and who has to wait, where there are too many connections."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.http.connection_limit import ConnectionLimit, Entry
from tests.app.http.connection.test_protocol import Wire
from tests.app.served import ServedGateway
from tests.engine import models
from tests.support import WAIT, until

SILENT = 600
LISTING = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


class Connection:
    """A connection, as far as a limit knows it."""

    def __init__(self, asks: bool = False) -> None:
        self.asks = asks
        self.is_evicted = False

    def has_asked(self) -> bool:
        return self.asks

    def evict(self) -> None:
        self.is_evicted = True


class Room:
    """The connections of a limit; those that are evicted leave at once."""

    def __init__(self, limit: ConnectionLimit) -> None:
        self.limit = limit
        self.there: list[tuple[Connection, str]] = []

    def come(self, connection: Connection, address: str = "") -> Entry:
        self.there.append((connection, address))
        entry = self.limit.enter(connection, address, len(self.there))
        for one, where in list(self.there):
            if one.is_evicted:
                self.leave(one, where)
        return entry

    def leave(self, connection: Connection, address: str = "") -> None:
        self.there.remove((connection, address))
        self.limit.leave(connection, address, len(self.there))


def test_who_has_asked_nothing_for_longest_goes_first() -> None:
    room = Room(ConnectionLimit(4, most_extra=2))
    asked = Connection(asks=True)
    silent = [Connection() for _ in range(6)]
    assert [room.come(g) for g in (asked, *silent)] == [Entry.FREE] * 7
    assert [g.is_evicted for g in silent] == [True] * 3 + [False] * 3
    assert not asked.is_evicted


def test_those_that_have_asked_stay() -> None:
    room = Room(ConnectionLimit(3, most_extra=2))
    asked = [Connection(asks=True) for _ in range(3)]
    for connection in asked:
        assert room.come(connection) is Entry.FREE
    extra = [Connection(), Connection()]
    assert [room.come(connection) for connection in extra] == [Entry.EXTRA] * 2
    # Silence makes room beyond the limit, too.
    extra[1].asks = True
    late = Connection()
    assert room.come(late) is Entry.EXTRA
    assert extra[0].is_evicted
    late.asks = True
    assert room.come(Connection(asks=True)) is Entry.REFUSED
    assert not any(connection.is_evicted for connection in asked)
    for connection in (*asked, extra[1], late):
        room.leave(connection)
    assert room.come(Connection()) is Entry.FREE


def test_an_address_has_its_own_limit() -> None:
    limit = ConnectionLimit(100, per_address=2, is_proxy="proxy".__eq__, most_extra=1)
    room = Room(limit)
    silent = Connection()
    assert room.come(silent, "a") is Entry.FREE
    assert [room.come(Connection(asks=True), "a") for _ in range(2)] == [Entry.FREE] * 2
    assert silent.is_evicted
    assert room.come(Connection(asks=True), "a") is Entry.EXTRA_OF_ADDRESS
    assert room.come(Connection(asks=True), "a") is Entry.REFUSED
    for address in ("b", "proxy", "proxy", "proxy", "", "", ""):
        assert room.come(Connection(asks=True), address) is Entry.FREE
    for connection, address in list(room.there):
        room.leave(connection, address)
    assert limit._of_address == {}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_silence_keeps_out_nobody(tmp_path: Path, workers: str) -> None:
    """From one address, with few descriptors: inference and health are answered."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < SILENT + 200:
        pytest.skip(f"this process may open no more than {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    models.affine(tmp_path / "affine.popef")
    few = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")
    options = ("--workers", workers)
    with ServedGateway(tmp_path, *options, before=few) as gateway, ExitStack() as stack:
        gateway.wait_ready().client.close()
        where = urlsplit(gateway.url)
        address = (where.hostname or "", where.port or 0)
        for _ in range(SILENT):
            stack.enter_context(socket.create_connection(address, WAIT))
        for _ in range(10):
            with httpx.Client(base_url=gateway.url, timeout=WAIT) as client:
                assert client.get("/v1/health/ready").status_code == 200
            with httpx.Client(base_url=gateway.url, timeout=WAIT) as client:
                body = {"inputs": {"input": [[1, 2, 3, 4]]}}
                answer = client.post("/v1/models/affine/infer", json=body)
                assert answer.status_code == 200


def test_an_address_beyond_its_limit_is_told(tmp_path: Path) -> None:
    options = ("--max-connections-per-address", "2")
    with ServedGateway(tmp_path, *options) as gateway, ExitStack() as stack:
        gateway.client.close()
        wires = []
        for _ in range(2):
            wires.append(stack.enter_context(Wire(gateway)))
            wires[-1].send(LISTING)
            assert wires[-1].answer()[0] == 200
        wires.append(stack.enter_context(Wire(gateway)))
        wires[2].send(LISTING)
        status, _, refused = wires[2].answer()
        assert status == 503
        assert b"--max-connections-per-address" in refused
        assert wires[2].is_closed()
        wires[0].socket.shutdown(socket.SHUT_RDWR)

        def answered() -> bool:
            with httpx.Client(base_url=gateway.url, timeout=WAIT) as client:
                return client.get("/v1/models").status_code == 200

        until(answered)
