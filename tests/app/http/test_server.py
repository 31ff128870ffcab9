"""The server's end: who is answered, who is refused, what is left behind.

Covers: app/http/open_connections.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from app.http.access import Access
from app.http.floods import BURST, ENTRY, Floods
from app.http.proxies import TrustedProxies
from app.http.server import SIGNAL_APART, GatewayServer
from app.http.sockets import listen_tcp
from app.serving.service import Service
from app.serving.table import ModelEntry, ModelTable
from tests.app.served import POPGATE, ROOT, ServedGateway
from tests.support import until

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
WAIT = 10.0  # seconds that nothing here should ever take


class HoldingApp:
    """Answers `/` at once, and everything else when `release` is called."""

    base_path = b""

    def __init__(self) -> None:
        self.service = Service(ModelTable())
        self.access = Access()
        self.proxies = TrustedProxies()
        self.short: dict[str, ModelEntry] = {}
        self.started = threading.Event()
        self.entered = threading.Semaphore(0)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.drained = False
        self.body = b"ok"
        self._gate = asyncio.Event()

    def lines_for_origin(self, origin: bytes | None) -> bytes:
        return b""

    def release(self) -> None:
        assert self.loop is not None
        with contextlib.suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self._gate.set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["path"] != "/":
            self.entered.release()
            await self._gate.wait()
        headers = [(b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        self.loop = asyncio.get_running_loop()
        await receive()
        await send({"type": "lifespan.startup.complete"})
        self.started.set()
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def abort(self) -> None:
        self._gate.set()


class Running:
    """A server in a thread of this process."""

    def __init__(self, **options: Any) -> None:
        self.app = HoldingApp()
        self.listener = listen_tcp("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self._connections: list[http.client.HTTPConnection] = []
        front: Any = self.app  # all that is asked of it is to be an application
        self.server = GatewayServer(front, abort=self.app.abort, **options)
        self._thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.listener]}
        )
        self._thread.start()
        assert self.app.started.wait(WAIT)

    def signal(self) -> None:
        self.server.handle_exit(signal.SIGTERM, None)

    def join(self) -> None:
        self._thread.join(WAIT)
        assert not self._thread.is_alive()

    def close_connections(self) -> None:
        for connection in self._connections:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        self._connections.append(connection)
        return connection

    def hold(self) -> http.client.HTTPConnection:
        """A connection with a request that is being worked on."""
        connection = self.connect()
        connection.request("GET", "/held")
        assert self.app.entered.acquire(timeout=WAIT)
        return connection


@contextlib.contextmanager
def running(**options: Any) -> Iterator[Running]:
    server = Running(**options)
    try:
        yield server
    finally:
        server.server.force_exit = server.server.should_exit = True
        server.app.release()
        server.join()
        server.close_connections()


def test_a_connection_for_each_request_is_no_flood() -> None:
    """Clients without keep-alive come as often as they like; those that come and ask
    nothing do not."""
    floods = Floods(clock=lambda: 100.0)
    with running(floods=floods) as server:

        def come(what: bytes) -> None:
            with socket.create_connection(("127.0.0.1", server.port), WAIT) as client:
                client.sendall(what)
                while what and client.recv(4096):
                    pass

        for _ in range(int(BURST / ENTRY) + 50):
            come(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert not floods.is_on
        for _ in range(BURST + 50):
            come(b"")
        until(lambda: floods.is_on)


def test_who_asks_nothing_any_more_is_disconnected() -> None:
    with running() as server:
        assert server.server.config.timeout_keep_alive == 75
        server.server.config.timeout_keep_alive = 0
        unused, used = server.connect(), server.connect()
        unused.connect()
        used.request("GET", "/")
        assert used.getresponse().read() == b"ok"
        for connection in (unused, used):
            assert connection.sock.recv(100) == b""


def test_requests_in_flight_are_answered() -> None:
    with running() as server:
        held = [server.hold() for _ in range(3)]
        server.signal()
        assert server.server.draining
        server.app.release()
        for connection in held:
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b"ok")
            assert response.getheader("connection") == "close"
        server.join()
        assert server.server.exit_code == 0


def test_idle_connections_do_not_hold_it_up() -> None:
    with running() as server:
        idle = server.connect()
        idle.request("GET", "/")
        assert idle.getresponse().read() == b"ok"
        unused = server.connect()
        unused.connect()
        server.signal()
        server.join()
        assert server.server.exit_code == 0


def test_an_idle_connection_gets_one_more_answer() -> None:
    with running(drain_grace=60.0) as server:
        connection = server.connect()
        connection.request("GET", "/")
        connection.getresponse().read()
        server.signal()
        connection.request("GET", "/")
        response = connection.getresponse()
        assert response.read() == b"ok"
        assert response.getheader("connection") == "close"


def test_new_connections_are_taken_during_the_grace() -> None:
    with running(drain_grace=60.0) as server:
        server.signal()
        connection = server.connect()
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"ok"


def test_connections_in_the_queue_are_answered() -> None:
    """Nobody who got a connection gets it reset."""
    with running() as server:
        held = server.hold()
        queued = [server.connect() for _ in range(50)]
        for connection in queued:
            connection.request("GET", "/")
        server.signal()
        assert [c.getresponse().read() for c in queued] == [b"ok"] * 50
        server.app.release()
        assert held.getresponse().read() == b"ok"
        server.join()
        with pytest.raises(OSError, match="refused"):
            server.connect().connect()


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_long_queue_is_answered(is_busy: bool) -> None:
    """The loop accepts one connection in each pass, and has no time for so many."""
    with running() as server:
        held = server.hold() if is_busy else None
        assert server.app.loop is not None
        go_on = threading.Event()
        server.app.loop.call_soon_threadsafe(go_on.wait, WAIT)
        queued = [server.connect() for _ in range(400)]
        for connection in queued:
            connection.request("GET", "/")
        server.signal()
        go_on.set()
        assert [c.getresponse().read() for c in queued] == [b"ok"] * 400
        server.app.release()
        assert held is None or held.getresponse().read() == b"ok"


def test_what_takes_too_long_is_aborted_with_an_answer() -> None:
    with running(shutdown_timeout=0.0) as server:
        held = server.hold()
        server.signal()
        assert held.getresponse().read() == b"ok"
        server.join()
        assert server.server.exit_code == 0


def test_a_second_signal_goes_at_once() -> None:
    with running() as server:
        server.hold()
        first = time.monotonic()
        server.signal()
        server.signal()  # the same stop, sent to the process and to its group
        soon = time.monotonic() - first < SIGNAL_APART
        assert not (soon and server.server.force_exit)
        while not server.server.force_exit:
            assert time.monotonic() - first < WAIT
            server.signal()
        assert time.monotonic() - first > 0.9 * SIGNAL_APART
        server.join()
        assert server.server.exit_code == 1


def test_stopping_from_inside_keeps_the_code() -> None:
    with running() as server:
        server.server.stop(3)
        server.join()
        assert server.server.exit_code == 3


def test_broken_http_is_answered_in_our_form() -> None:
    with (
        running() as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=WAIT) as raw,
    ):
        raw.sendall(b"NOT HTTP AT ALL\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"code":"bad_http"' in answer


def test_a_mistake_of_ours_is_not_called_the_clients() -> None:
    with running() as server:
        server.app.base_path = 7  # type: ignore[assignment]
        connection = server.connect()
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.status == 500
        assert b'"code":"internal_error"' in answer.read()


def test_a_hangup_of_a_service_makes_it_look_at_its_files(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("anonymous = []")
    with ServedGateway(tmp_path, "--keys", str(keys)) as gateway:
        gateway.wait_ready()
        keys.write_text('anonymous = ["metadata"]')
        gateway.process.send_signal(signal.SIGHUP)
        gateway.wait_line("SIGHUP: checking keys and certificates for changes")
        gateway.until("/v1/models", 200)
        assert gateway.stop() == 0


def test_a_terminal_that_has_gone_ends_it(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    try:
        process = subprocess.Popen(
            [*POPGATE, "serve", "-m", str(tmp_path), "--port", "0"],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                if "models" in line and "ready" in line:
                    break
            process.send_signal(signal.SIGHUP)
            rest = process.stdout.read()
            assert process.wait(WAIT) == 0
        assert "SIGHUP: shutting down" in rest
    finally:
        os.close(ours)
        os.close(theirs)
