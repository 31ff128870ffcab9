"""A load generator: whole requests as bytes, over kept connections, in one event loop.

Closed loop: each connection sends its next request when the answer is there. Open loop:
requests are due at times that do not depend on the server; latencies count from when a
request was due, so that those that had to wait for a connection are not left out.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import cast

_clock = time.monotonic
_NONBLOCKING = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1


@dataclass(slots=True)
class Run:
    """What came back. `ends` and `latencies` in seconds, of answers with 200 only;
    `ends` are times of `time.monotonic`. `late`: requests that could not be sent when
    they were due, for want of a connection. `cpu`: of a core, what the generator used.
    """

    seconds: float = 0.0
    sent: int = 0
    not_ok: int = 0
    broken: int = 0
    late: int = 0
    cpu: float = 0.0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))

    @property
    def count(self) -> int:
        return len(self.latencies)

    @property
    def rate(self) -> float:
        """Answers with 200 a second."""
        return self.count / self.seconds if self.seconds else 0.0


class _Connection(asyncio.Protocol):
    """One kept connection: a request, its answer, the next request."""

    __slots__ = ("begun", "generator", "head", "missing", "ok", "transport")

    def __init__(self, generator: _Generator) -> None:
        self.generator = generator
        self.transport: asyncio.Transport | None = None
        self.head = b""
        self.missing = -1  # bytes of the body still to come; -1: reading the head
        self.ok = True
        self.begun = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has no base

    def post(self, due: float) -> None:
        assert self.transport is not None
        self.begun = due
        self.generator.run.sent += 1
        self.transport.write(next(self.generator.requests))

    def data_received(self, data: bytes) -> None:
        if self.missing < 0:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.head[:end].lower()
            self.ok = head.startswith(b"http/1.1 200")
            at = head.find(b"\r\ncontent-length:")
            if at < 0 and self.transport is not None:  # its end cannot be seen
                self.transport.abort()
                return
            size = int(head[at + 17 :].split(b"\r\n", 1)[0])
            self.missing = size - (len(self.head) - end - 4)
            self.head = b""
        else:
            self.missing -= len(data)
        if self.missing == 0:
            self.missing = -1
            run, now = self.generator.run, _clock()
            if self.ok:
                run.latencies.append(now - self.begun)
                run.ends.append(now)
            else:
                run.not_ok += 1
            self.generator.free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.generator.lost(self)


class _Generator:
    def __init__(self, requests: Sequence[bytes]) -> None:
        self.requests: Iterator[bytes] = cycle(requests)
        self.run = Run()
        self.over = False
        self.connections: set[_Connection] = set()

    async def connect(self, address: tuple[str, int] | str) -> _Connection:
        loop = asyncio.get_running_loop()
        if isinstance(address, str):
            _, made = await loop.create_unix_connection(
                lambda: _Connection(self), address
            )
        else:
            _, made = await loop.create_connection(lambda: _Connection(self), *address)
        self.connections.add(made)
        return made

    def free(self, connection: _Connection) -> None:
        if not self.over:
            connection.post(_clock())

    def lost(self, connection: _Connection) -> None:
        self.connections.discard(connection)
        self.run.broken += not self.over

    def end(self) -> None:
        self.over = True
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()


class _OpenGenerator(_Generator):
    """Sends what is due; what finds no connection free waits for one."""

    def __init__(self, requests: Sequence[bytes]) -> None:
        super().__init__(requests)
        self.idle: deque[_Connection] = deque()
        self.waiting: deque[float] = deque()

    def free(self, connection: _Connection) -> None:
        if self.over:
            return
        if self.waiting:
            connection.post(self.waiting.popleft())
        else:
            self.idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        super().lost(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def due(self, at: float) -> None:
        if self.idle:
            self.idle.pop().post(at)
        else:
            self.run.late += 1
            self.waiting.append(at)


class _Timer:
    """Calls back at absolute times, to some tens of microseconds: an event loop's own
    timers know milliseconds only."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCKING)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._call = call
        asyncio.get_running_loop().add_reader(self._file, self._ring)

    def set(self, at: float) -> None:
        nanoseconds = max(1, int(at * 1e9))
        value = (ctypes.c_long * 4)(0, 0, *divmod(nanoseconds, 1_000_000_000))
        self._libc.timerfd_settime(self._file, _ABSOLUTE, value, None)

    def _ring(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return
        self._call()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)


async def closed_loop(
    address: tuple[str, int] | str,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
) -> Run:
    """Keep so many connections busy for so long. Raises OSError without a server."""
    generator = _Generator(requests)
    opened = [await generator.connect(address) for _ in range(connections)]
    started, used = _clock(), time.process_time()
    for connection in opened:
        connection.post(_clock())
    await asyncio.sleep(seconds)
    return _finished(generator, started, used)


async def open_loop(
    address: tuple[str, int] | str,
    requests: Sequence[bytes],
    gaps: Iterator[float],
    connections: int,
    seconds: float,
) -> Run:
    """Send requests when they are due, `gaps` seconds after each other, over at most so
    many connections. Raises OSError without a server."""
    generator = _OpenGenerator(requests)
    generator.idle.extend(
        [await generator.connect(address) for _ in range(connections)]
    )
    over = asyncio.get_running_loop().create_future()
    started, used = _clock(), time.process_time()
    end = started + seconds
    at = started + next(gaps)

    def send() -> None:
        nonlocal at
        now = _clock()
        while at <= now and at < end:
            generator.due(at)
            at += next(gaps)
        if at < end:
            timer.set(at)
        elif now < end:
            timer.set(end)
        elif not over.done():
            over.set_result(None)

    timer = _Timer(send)
    try:
        send()
        await over
    finally:
        timer.close()
    return _finished(generator, started, used)


def _finished(generator: _Generator, started: float, used: float) -> Run:
    run = generator.run
    run.seconds = _clock() - started
    run.cpu = (time.process_time() - used) / run.seconds
    generator.end()
    return run
