"""The HTTP server: uvicorn, with an orderly shutdown.

A shutdown has these steps, in this order:

- Readiness says no, and every answer carries ``Connection: close``.
- After `drain_grace` seconds the server accepts no new connections, except those
  already in the kernel's queue.
- The server closes connections that stay idle.
- It answers the requests in flight, after `shutdown_timeout` with an error.
- The process exits with 0.

A second signal ends the process immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import HANDLED_SIGNALS

from app.http.application import Application
from app.http.connection.clocks import Patience
from app.http.connection.dispatch import Dispatch
from app.http.connection.protocol import GatewayProtocol, Listener
from app.http.connection.response_framing import CLOSE_HEADER
from app.http.connection_limit import MOST_EXTRA, ConnectionLimit
from app.http.floods import WAITING, Acceptor, Floods
from app.http.open_connections import OpenConnections
from app.http.sockets import BACKLOG, refuse_new_connections
from app.http.tls import Certificate
from app.limits import Total
from app.plugins import LOOP_WATCHES, plugins
from app.sizes import counted

logger = logging.getLogger(__name__)

# Seconds before idle connections are closed. A client may just have read `Connection:
# close`, or be sending on an idle connection.
IDLE_LINGER = 0.5
SIGNAL_APART = 0.3  # seconds: signals closer together are one
TICK = 0.02  # seconds between checks for requests in flight
LAST_ANSWERS = 2.0  # seconds allowed for answers to aborted requests to leave
LOOK_AT = 8  # connections checked in one turn of the event loop
LOOK_TICKS = 10  # of 0.1 s, between checks for inactive connections

# The share of the descriptors for waiting connections, and for connections beyond the
# limit.
_SHARE = 16


@contextlib.contextmanager
def _signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals until the process ends.

    One that comes while it exits changes neither its exit code nor its output.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in HANDLED_SIGNALS:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in HANDLED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


class GatewayServer(uvicorn.Server):
    """Runs one ASGI application on sockets that already listen.

    Three timeouts in seconds end a request. `header_timeout` ends it if its head is
    incomplete, `upload_timeout` if no bytes of its body arrive. `send_timeout` (0:
    never) ends it if the client reads nothing of the answer. Beyond the limit of
    `open_connections` a new connection replaces a silent one. If none is silent, the
    server answers only health checks and management. `sides` still answer all their
    paths. If `connections` is given, the connections of other processes count too.
    `max_connections_per_address` (0: any number) limits the clients of one address in
    the same way. With a `certificate` all sockets use TLS, except Unix sockets of
    `sides`. `sides` are other applications with their own sockets, which live as long.
    `kept` sockets belong to another process, and new connections keep waiting in them.
    `floods` counts the refusals of all applications. While `is_drained` is true, every
    answer is the last of its connection, so clients reconnect through a load balancer,
    which knows other servers. The event loop calls `on_listening` once, when all
    sockets are open. `on_drain` is called when the shutdown begins (from a signal
    handler, so it may only set values), `on_reload` when files should be reloaded.
    `abort` is called at the timeout and must end every request in flight soon.
    `exit_code` is the exit code of the process.
    """

    def __init__(
        self,
        app: Application,
        *,
        drain_grace: float = 0.0,
        shutdown_timeout: float = 30.0,
        header_timeout: float = 30.0,
        upload_timeout: float = 30.0,
        send_timeout: float = 30.0,
        open_connections: OpenConnections | None = None,
        max_connections_per_address: int = 0,
        certificate: Certificate | None = None,
        sides: Sequence[tuple[Application, socket.socket]] = (),
        floods: Floods | None = None,
        connections: Total | None = None,
        kept: Sequence[socket.socket] = (),
        is_drained: Callable[[], bool] = lambda: False,
        on_listening: Callable[[], None] = lambda: None,
        on_drain: Callable[[], None] = lambda: None,
        on_reload: Callable[[], None] = lambda: None,
        abort: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=GatewayProtocol,
            ws="none",
            lifespan="on",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=True,
            timeout_keep_alive=75,
        )
        super().__init__(config)
        self._open = open_connections or OpenConnections()
        self.server_state = self._open.state
        self.exit_code = 0
        self._drain_grace = drain_grace
        self._shutdown_timeout = shutdown_timeout
        self._header_timeout = header_timeout or math.inf
        self._upload_timeout = upload_timeout or math.inf
        self._send_timeout = send_timeout or math.inf
        self._per_address = max_connections_per_address
        self._connections = connections
        self._certificate = certificate
        self._app = app
        self._sides = sides
        self._kept = kept
        self._is_drained = is_drained
        self._on_listening = on_listening
        self._on_drain = on_drain
        self._on_reload = on_reload
        self._abort = abort
        self._draining_since = 0.0
        self.floods = floods or Floods()
        self._acceptors: list[Acceptor] = []
        self._watches: list[Any] = []

    @property
    def draining(self) -> bool:
        return self._draining_since > 0

    def capture_signals(self) -> Any:  # the type is private to contextlib
        return _signals_to(self.handle_exit)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM: the first drains, the second exits immediately."""
        if self.draining:
            if time.monotonic() - self._draining_since < SIGNAL_APART:
                return  # one stop, delivered to the process and its group
            if not self.force_exit:
                name = signal.Signals(sig).name
                logger.warning(
                    "%s received again: exiting immediately, even if requests are in "
                    "flight",
                    name,
                )
            self.force_exit = True
            self.should_exit = True
            self.exit_code = 1
            return
        name, left = signal.Signals(sig).name, self._open.unfinished()
        waits = (
            f", waiting at most {self._shutdown_timeout:g} s for {left} "
            f"request{'s' if left > 1 else ''} in flight; a second signal exits "
            "immediately"
        )
        logger.info("%s: shutting down%s", name, waits if left else "")
        self.begin_drain()

    def handle_hangup(self) -> None:
        """Handle SIGHUP: in a terminal shut down, in a service reload files."""
        if sys.stdin is not None and sys.stdin.isatty():
            self.handle_exit(signal.SIGHUP, None)
            return
        logger.info("SIGHUP: checking keys and certificates for changes")
        if self._certificate is not None:
            self._certificate.renew()
        self._on_reload()

    def begin_drain(self) -> None:
        """Start the orderly shutdown, at most once.

        For the loop thread or a signal handler.
        """
        self._draining_since = time.monotonic()
        self._on_drain()
        self._announce_close()

    def stop(self, exit_code: int) -> None:
        """Shut the server down from inside, with the given exit code."""
        self.exit_code = exit_code
        if not self.draining:
            self.begin_drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        loop = asyncio.get_running_loop()
        if path := os.environ.get("POPGATE_LOOP_WATCH"):  # else no plugin is imported
            found = plugins(LOOP_WATCHES).values()
            self._watches = [watch(loop, Path(path)) for watch in found]
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup does this
        if not ignored and threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGHUP, self.handle_hangup)
        main = [(self._app, listener) for listener in sockets or ()]
        for app, listener in (*main, *self._sides):
            await self._listen(app, listener)
        self._on_listening()

    async def _listen(self, app: Application, listener: socket.socket) -> None:
        """Serve `app` on a socket as uvicorn does, but limit a TLS handshake like a
        head.
        """
        loop = asyncio.get_running_loop()
        is_side = any(listener is side for _, side in self._sides)
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        limit = ConnectionLimit()
        if not is_side:
            limit = ConnectionLimit(
                self._open.count()[1],
                self._connections,
                self._per_address,
                app.proxies.is_one,
                most_extra=min(MOST_EXTRA, descriptors // _SHARE),
            )
        make = functools.partial(
            GatewayProtocol, Listener(Dispatch(app), self.floods, limit),
            config=self.config,
            server_state=self.server_state, app_state=self.lifespan.state, _loop=loop,
        )  # fmt: skip
        is_plain = is_side and listener.family == socket.AF_UNIX
        certificate = None if is_plain else self._certificate
        tls = None if certificate is None else certificate.context
        patience = self._header_timeout
        acceptor = Acceptor(
            listener,
            make,
            # An operator must be able to connect during a flood.
            floods=None if is_side else self.floods,
            tls=tls,
            handshake_timeout=None if tls is None or math.isinf(patience) else patience,
            backlog=BACKLOG,
            waiting=max(1, min(WAITING, descriptors // _SHARE)),
            most_entering=lambda: limit.left(len(self.server_state.connections)),
        )
        await acceptor.open()
        self._acceptors.append(acceptor)

    def take_over(self, connection: socket.socket) -> None:
        """Serve a connection that another process has accepted on a socket like our
        first.
        """
        self._acceptors[0].take_over(connection)

    async def on_tick(self, counter: int) -> bool:
        stop = await super().on_tick(counter)
        if counter % LOOK_TICKS == 0:
            await self._look_after_connections()
            if self._certificate is not None:
                self._certificate.renew()
        if not self.draining and self._is_drained():
            self._announce_close()
        if self.draining:
            self._announce_close()
            stop |= time.monotonic() >= self._draining_since + self._drain_grace
        return stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.draining:
            self.begin_drain()
        side_sockets = [listener for _, listener in self._sides]
        await self._close_listeners([*(sockets or []), *side_sockets])
        if not await self._finish(self._draining_since + self._shutdown_timeout):
            await self._abort_requests()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for each in self._watches:  # no client waits for the remaining answers
            each.stop()
        if not self.force_exit:
            await self.lifespan.shutdown()
            return
        # The loop cancels these tasks, and each would log a traceback.
        quiet = logging.Logger("cancelled", logging.CRITICAL + 1)
        if isinstance(self.lifespan, LifespanOn):
            self.lifespan.logger = quiet
        for connection in self.server_state.connections:
            cycle: Any = getattr(connection, "cycle", None)
            if hasattr(cycle, "logger"):
                cycle.logger = quiet

    def _announce_close(self) -> None:
        """Make every following answer the last one of its connection."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, GatewayProtocol):
                connection.finish()
        headers = self.server_state.default_headers
        if CLOSE_HEADER not in headers:
            self.server_state.default_headers = [*headers, CLOSE_HEADER]

    async def _close_listeners(self, sockets: list[socket.socket]) -> None:
        for listener in sockets:
            if listener not in self._kept:
                refuse_new_connections(listener)
        if not self.force_exit:
            await asyncio.sleep(2 * TICK)  # the loop accepts what the queue holds
        for acceptor in self._acceptors:
            acceptor.close()
        for listener in sockets:
            listener.close()
        await asyncio.sleep(TICK)  # the loop sets up the connections of the queue

    async def _finish(self, deadline: float) -> bool:
        """Wait until no request is in flight; return False if that takes too long."""
        linger_until = time.monotonic() + IDLE_LINGER
        while not self.force_exit:
            now = time.monotonic()
            if now >= linger_until:
                for connection in list(self.server_state.connections):
                    # Closes an idle connection, and marks a busy one's answer as last.
                    connection.shutdown()
            connections = self.server_state.connections
            if not (connections or self.server_state.tasks):
                return True
            if now >= max(deadline, linger_until):
                return False
            await asyncio.sleep(TICK)
        return False

    async def _look_after_connections(self) -> None:
        """Close the connections a few at a time, because there may be thousands."""
        now = asyncio.get_running_loop().time()
        patience = Patience(
            self._header_timeout, self._upload_timeout, self._send_timeout
        )
        for number, connection in enumerate(list(self.server_state.connections)):
            if number % LOOK_AT == LOOK_AT - 1:
                await asyncio.sleep(0)
            if isinstance(connection, GatewayProtocol):
                connection.look_after(now, patience)

    async def _abort_requests(self) -> None:
        tasks, left = self.server_state.tasks, self._open.unfinished()
        if self.force_exit or not left:
            return
        logger.error(
            "%s still in flight after %g seconds: failing what is left",
            counted(left, "request"),
            self._shutdown_timeout,
        )
        if self._abort is not None:
            await self._abort()
        if tasks:
            await asyncio.wait(list(tasks), timeout=LAST_ANSWERS)
        for task in list(tasks):
            task.cancel(msg="the gateway is shutting down")
