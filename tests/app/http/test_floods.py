"""Refusals have a rate; beyond it they, and new connections, wait."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme
import uvloop

from app.config.keys import digest_of
from app.http.floods import BURST, HANDSHAKE, RATE, Acceptor, Floods
from app.http.handshake import ServerContext
from app.http.sockets import listen_tcp
from tests.app.http.connection.test_protocol import Wire, expected, request
from tests.app.served import Serve, ServedGateway
from tests.engine import models
from tests.support import WAIT

KEY = "X-API-Key: k"
LISTING = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n%b\r\n"
WRONG, RIGHT = LISTING % b"", LISTING % b"X-API-Key: k\r\n"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_so_many_at_once_wait_for_nothing() -> None:
    clock = Clock()
    floods = Floods(clock)
    for _ in range(BURST):
        assert floods.charge() == 0
    assert not floods.is_on
    waits = [floods.charge() for _ in range(3)]
    assert waits == pytest.approx([1 / RATE, 2 / RATE, 3 / RATE])
    assert floods.is_on
    clock.now += 2
    assert not floods.is_on
    assert floods.charge(BURST) == 0
    assert floods.charge(10) == pytest.approx(10 / RATE)


def test_nobody_waits_for_long() -> None:
    clock = Clock()
    floods = Floods(clock)
    assert floods.charge(1000 * RATE) == pytest.approx(1)
    assert floods.charge() == pytest.approx(1)
    assert floods.apart < 0.05
    clock.now += 1
    assert 0 < floods.apart < 0.005


def test_in_a_flood_connections_are_let_in_one_by_one() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_let_in())


class Entered(asyncio.Queue[asyncio.BaseTransport]):
    """The connections that an acceptor lets in."""

    def acceptor(
        self,
        kind: type[Acceptor],
        listener: socket.socket,
        floods: Floods,
        tls: ssl.SSLContext | None = None,
    ) -> Acceptor:
        entered = self

        class Entering(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                entered.put_nowait(transport)

        return kind(
            listener,
            Entering,
            floods=floods,
            tls=tls,
            handshake_timeout=None if tls is None else 60.0,
            backlog=100,
        )


async def _let_in() -> None:
    clock, entered = Clock(), Entered()
    floods = Floods(clock)
    with listen_tcp("127.0.0.1", 0) as listener, ExitStack() as stack:
        acceptor = entered.acceptor(Acceptor, listener, floods)
        await acceptor.open()

        def come(count: int) -> None:
            for _ in range(count):
                wire = socket.create_connection(listener.getsockname(), 10)
                stack.enter_context(wire)

        async def enter(count: int) -> None:
            for _ in range(count):
                (await asyncio.wait_for(entered.get(), 10)).close()

        come(3)
        await enter(3)
        floods.charge(10 * RATE)
        come(20)
        sizes = []
        for _ in range(20):
            await enter(1)
            sizes.append(entered.qsize())
        assert max(sizes) <= 1
        for _ in range(70):  # of clients that go at once
            with socket.create_connection(listener.getsockname(), 10) as wire:
                reset = b"\1\0\0\0\0\0\0\0"
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        come(1)
        await enter(1)
        assert entered.empty()
        clock.now += 10  # it is over
        come(3)
        await enter(3)
        floods.charge(10 * RATE)  # and comes again
        come(3)
        await enter(3)
        acceptor.close()


def test_failed_handshakes_are_a_flood() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_fail())


async def _fail() -> None:
    floods, tls = Floods(Clock()), ServerContext()
    trustme.CA().issue_cert("localhost").configure_cert(tls)
    strangers = ssl.create_default_context()
    with listen_tcp("127.0.0.1", 0) as listener:
        acceptor = Entered().acceptor(Acceptor, listener, floods, tls)
        await acceptor.open()
        host, port = listener.getsockname()
        for _ in range(int(BURST / HANDSHAKE)):
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection(host, port, ssl=strangers)
        assert not floods.is_on
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection(host, port, ssl=strangers)
        await asyncio.wait_for(floods.wait_for_one(), 10)
        acceptor.close()


def test_a_flood_that_leaves_no_descriptor_ends_too() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_go_on())


async def _go_on() -> None:
    clock, entered = Clock(), Entered()
    floods, opened = Floods(clock), asyncio.Queue[bool]()

    class Watched(Acceptor):
        async def _let_all_in(self) -> None:
            opened.put_nowait(True)
            await super()._let_all_in()

    with listen_tcp("127.0.0.1", 0) as listener:
        acceptor = entered.acceptor(Watched, listener, floods)
        await acceptor.open()
        await opened.get()
        floods.charge(10 * RATE)
        with socket.create_connection(listener.getsockname(), 10):
            (await asyncio.wait_for(entered.get(), WAIT)).close()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            clock.now += 10  # it is over
            for _ in range(3):
                await asyncio.wait_for(opened.get(), WAIT)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with socket.create_connection(listener.getsockname(), 10):
            (await asyncio.wait_for(entered.get(), WAIT)).close()
        acceptor.close()


@pytest.fixture(scope="module")
def gateway(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(f"[[key]]\nname = 'a'\nsha256 = '{digest_of(b'k').hex()}'\n")

    def fill(root: Path) -> None:
        models.affine(root / "affine.popef")

    served = serve(fill, "--keys", str(keys), "--max-body-size", "64KiB")
    yield served
    assert "Traceback" not in served.output


def test_a_flood_of_wrong_keys_is_answered_in_order(gateway: ServedGateway) -> None:
    """What waits is answered when its turn comes, and so are others meanwhile."""
    with Wire(gateway) as wire, Wire(gateway) as other:
        wire.send(WRONG * (BURST + 50) + RIGHT)
        for _ in range(BURST + 30):
            assert wire.answer()[0] == 401
        other.send(request(2, KEY))
        assert other.output() == expected(2)
        with Wire(gateway) as another:  # let in while there is a flood
            another.send(request(3, KEY))
            assert another.output() == expected(3)
        for _ in range(20):
            assert wire.answer()[0] == 401
        assert wire.answer()[0] == 200


def test_a_refused_body_is_dropped_and_its_answer_read(gateway: ServedGateway) -> None:
    """Also in chunks, and far more of it than is ever looked at."""
    head = b"POST /v1/models/affine/infer HTTP/1.1\r\nHost: x\r\nX-API-Key: k\r\n"
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    with Wire(gateway) as wire:
        wire.send(head + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 32)
        status, headers, _ = wire.answer()
        assert (status, headers["connection"]) == (413, "close")
        assert wire.is_closed()
