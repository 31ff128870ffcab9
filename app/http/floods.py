"""Limit the part of the event loop that a flood of refusals takes.

Answers are useful work, but refusals are not. Therefore all refusals of a server
together have a rate limit, including connections that end before they send a request.
Above this rate the server delays reading from refused clients. New connections then
wait in the kernel's queue and are accepted one by one.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

#: Refusals per second, and how many pass at once before clients must wait.
RATE: Final = 500
BURST: Final = 100
#: The number of bytes read and dropped that costs as much as one refusal.
DROPPED: Final = 512 * 1024
#: The number of bytes of a refused body, read, parsed or inflated, that costs as much
#: as one refusal.
READ: Final = 64 * 1024
#: The cost, in refusals, of a connection until it has sent a request and ended. Then
#: the cost of a TLS handshake without a request.
ENTRY: Final = 0.2
HANDSHAKE: Final = 4.0
# Seconds: the longest wait of a client, the time from the last wait to the end of the
# flood, and the time between two checks for new connections in a flood.
_LONGEST = 1.0
_LASTS = 1.0
_APART = 0.002
# The most connections taken from the kernel's queue at each check, and the most that
# wait here. Skipping clients that have left costs almost nothing.
_TAKEN = 16
WAITING: Final = 256
# Seconds after which the event loop may drop the rest of a closed TLS connection. The
# server's own checks know better when a client has stopped reading.
_NEVER = 86400.0


class Floods:
    """The refusals of a server; for the event loop's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at = clock() - BURST / RATE
        self._over_at = -1.0
        self._began: asyncio.Event | None = None

    def charge(self, refusals: float = 1.0) -> float:
        """Count refusals, and return the seconds for which their client must wait.

        The result is 0 if there is no flood.
        """
        now = self._clock()
        free_at = max(self._free_at, now - BURST / RATE) + refusals / RATE
        self._free_at = min(free_at, now + _LONGEST)
        wait = self._free_at - now
        if wait <= 0:
            return 0.0
        self._over_at = now + _LASTS
        if self._began is not None:
            self._began.set()
        return wait

    @property
    def is_on(self) -> bool:
        return self._clock() < self._over_at

    @property
    def apart(self) -> float:
        """Return the seconds between two new connections, which grow with the waiting
        clients.
        """
        return _APART + max(0.0, self._free_at - self._clock()) / 50

    async def wait_for_one(self) -> None:
        """Wait until a flood has begun."""
        if self._began is None:
            self._began = asyncio.Event()
        if not self.is_on:
            self._began.clear()
            await self._began.wait()

    def __repr__(self) -> str:
        return f"<Floods, {'one' if self.is_on else 'none'} now>"


class Acceptor:
    """A listening socket, and the connections accepted through it.

    Without a flood the event loop accepts every connection. In a flood the connections
    leave the kernel's queue one at a time.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.Protocol],
        *,
        floods: Floods | None,
        tls: ssl.SSLContext | None,
        handshake_timeout: float | None,
        backlog: int,
        waiting: int = WAITING,
        most_entering: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """Accept connections on a socket.

        Without `floods` none waits; otherwise at most `waiting` wait here, each with a
        descriptor. Beyond `most_entering` TLS handshakes a new one ends the oldest.
        """
        self._listener = listener
        self._make = make
        self._floods = floods
        self._tls = tls
        self._handshake_timeout = handshake_timeout
        self._shutdown_timeout = None if tls is None else _NEVER
        self._backlog = backlog
        self._most_waiting = waiting
        self._server: asyncio.Server | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._most_entering = most_entering
        # In the order of their arrival.
        self._entering: OrderedDict[asyncio.Task[None], None] = OrderedDict()
        self._waiting: deque[socket.socket] = deque()

    async def open(self) -> None:
        await self._let_all_in()
        if self._floods is not None:
            keep = self._keep(self._floods)
            self._keeper = asyncio.get_running_loop().create_task(keep)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        self._let_none_in()
        self._take(self._backlog + 1)  # the kernel keeps one more
        while self._waiting:
            self._let_one_in()

    def take_over(self, connection: socket.socket) -> None:
        """Accept a connection from another process, in its turn."""
        self._waiting.append(connection)
        if self._floods is None or not self._floods.is_on:
            self._let_one_in()

    async def _let_all_in(self) -> None:
        loop = asyncio.get_running_loop()
        if self._tls is None:
            # Closing the server closes its socket; the listener goes on listening.
            copy, many = self._listener.dup(), self._backlog
            self._server = await loop.create_server(self._make, sock=copy, backlog=many)
        else:  # a server of the loop could not end a handshake
            self._listener.setblocking(False)
            self._listener.listen(self._backlog)
            loop.add_reader(self._listener, self._let_ready_in)

    def _let_ready_in(self) -> None:
        self._take(_TAKEN)
        if not self._waiting and self._floods is not None:  # no descriptor may be left
            self._floods.charge(ENTRY)
        while self._waiting:
            self._let_one_in()

    def _let_none_in(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        asyncio.get_running_loop().remove_reader(self._listener)

    async def _keep(self, floods: Floods) -> None:
        while True:
            await floods.wait_for_one()
            self._let_none_in()
            due = 0.0
            while floods.is_on or self._waiting:
                self._take(min(_TAKEN, self._most_waiting - len(self._waiting)))
                now = time.monotonic()
                if now >= due:
                    self._let_one_in()
                    due = now + floods.apart
                await asyncio.sleep(_APART)
            while True:
                try:
                    await self._let_all_in()
                    break
                except OSError:  # the flood may have taken all descriptors
                    await asyncio.sleep(_APART)

    def _take(self, most: int) -> None:
        for _ in range(most):
            try:
                self._waiting.append(self._listener.accept()[0])
            except OSError:  # no client waits, or no descriptor is left
                return

    def _let_one_in(self) -> None:
        while self._waiting:
            connection = self._waiting.popleft()
            if _has_gone(connection):
                connection.close()
                continue
            connection.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._enter(connection))
            self._entering[task] = None
            task.add_done_callback(lambda task: self._entering.pop(task, None))
            if self._tls and len(self._entering) > self._most_entering():
                self._entering.popitem(last=False)[0].cancel()
            return

    async def _enter(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_timeout,
                ssl_shutdown_timeout=self._shutdown_timeout,
            )
        except OSError:  # the client does not speak TLS, or is too slow
            connection.close()
            if self._floods is not None:
                self._floods.charge(HANDSHAKE)

    def __repr__(self) -> str:
        return f"<Acceptor {self._listener}>"


def _has_gone(connection: socket.socket) -> bool:
    """Return whether the client has reset the connection."""
    look = select.poll()
    look.register(connection, 0)  # errors are reported in any case
    return bool(look.poll(0))
