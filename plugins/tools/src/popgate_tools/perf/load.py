"""A load generator: prepared requests over kept connections, in one thread.

Closed loop: each connection sends its next request when the answer has arrived. A
single connection uses blocking system calls, because an event loop would only add time.
Open loop: requests are due at times that do not depend on the server. Latencies count
from the time at which a request was due, so they include waits for a connection.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import ssl
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import cast

from popgate_tools.perf.answers import (
    CHUNKED,
    KEPT,
    ChunkedBody,
    is_last,
    read_head,
    reason_of,
)

_clock = time.monotonic
_NONBLOCKING = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1
_ROOM = 1 << 18
_BROKEN = "the connection ended before the answer was complete"
#: Longest wait of a blocking call before the time is checked: a ``timeval``.
_LOOK = struct.pack("ll", 0, 50_000)


@dataclass(slots=True)
class RunRecord:
    """Results of a run.

    - `ends`: times of the answers with 200, of `time.monotonic`.
    - `latencies`: their latencies in seconds.
    - `late`: requests that could not be sent when they were due, because no connection
      was free.
    - `cpu`: share of a core that the generator used.
    - `first_failure`: the reason of the first failed request.
    """

    seconds: float = 0.0
    sent: int = 0
    not_ok: int = 0
    broken: int = 0
    late: int = 0
    cpu: float = 0.0
    first_failure: str = ""
    latencies: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))

    @property
    def count(self) -> int:
        return len(self.latencies)

    @property
    def rate(self) -> float:
        """Answers with 200 a second."""
        return self.count / self.seconds if self.seconds else 0.0

    def add(self, ok: bool, begun: float, ended: float, reason: str = "") -> None:
        """Count an answer; `reason` says why it failed."""
        if ok:
            self.latencies.append(ended - begun)
            self.ends.append(ended)
        else:
            self.not_ok += 1
            self.first_failure = self.first_failure or reason

    def add_broken(self) -> None:
        """Count a request whose connection ended before its answer did."""
        self.broken += 1
        self.first_failure = self.first_failure or _BROKEN

    def end(self, started: float, used: float) -> None:
        """End the run. `used` is the processor time that the process had used at its
        start.
        """
        self.seconds = _clock() - started
        self.cpu = (time.process_time() - used) / self.seconds


class _Connection(asyncio.Protocol):
    """One kept connection: a request, its answer, the next request."""

    __slots__ = (
        "begun", "chunks", "generator", "head", "is_last", "missing", "ok", "said",
        "transport",
    )  # fmt: skip

    def __init__(self, generator: _Generator) -> None:
        self.generator = generator
        self.transport: asyncio.Transport | None = None
        self.head = b""
        self.missing = -1  # missing bytes of the body; -1: reading the head
        self.ok = True
        self.is_last = False  # of its connection
        self.said = b""  # the start of an answer that is an error
        self.chunks: ChunkedBody | None = None
        self.begun = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has no base

    def post(self, due: float) -> None:
        assert self.transport is not None
        self.begun = due
        self.generator.run.sent += 1
        self.transport.write(next(self.generator.requests))

    def data_received(self, data: bytes) -> None:
        if self.chunks is not None:
            self._chunks_received(self.chunks, data)
            return
        if self.missing < 0:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            self.ok, size = read_head(self.head[:end])
            self.is_last = is_last(self.head[: end + 2])
            self.said = b"" if self.ok else self.head[:KEPT]
            head, self.head = self.head, b""
            if size == CHUNKED:
                self.chunks = ChunkedBody()
                self._chunks_received(self.chunks, head[end + 4 :])
                return
            if size < 0 and self.transport is not None:  # the body has no visible end
                self.transport.abort()
                return
            self.missing = size - (len(head) - end - 4)
        else:
            self.missing -= len(data)
            if not self.ok:
                self.said = (self.said + data)[:KEPT]
        if self.missing == 0:
            self.missing = -1
            reason = "" if self.ok else reason_of(self.said)
            self.generator.run.add(self.ok, self.begun, _clock(), reason)
            self._end()

    def _end(self) -> None:
        """Handle a complete answer."""
        if self.is_last:
            self.generator.replace(self)
        else:
            self.generator.free(self)

    def _chunks_received(self, chunks: ChunkedBody, data: bytes) -> None:
        try:
            is_complete = chunks.feed(data)
        except ValueError:
            if self.transport is not None:
                self.transport.abort()
            return
        if is_complete:
            self.chunks = None
            reason = chunks.error or ("" if self.ok else reason_of(self.said))
            self.generator.run.add(not reason, self.begun, _clock(), reason)
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.generator.lost(self)


class _Generator:
    def __init__(
        self,
        address: tuple[str, int] | str,
        requests: Sequence[bytes],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self.requests: Iterator[bytes] = cycle(requests)
        self.tls = tls
        self._connecting: set[asyncio.Task[None]] = set()
        self.run = RunRecord()
        self.over = False
        self.connections: set[_Connection] = set()

    async def connect(self) -> _Connection:
        loop, address = asyncio.get_running_loop(), self.address
        if isinstance(address, str):
            _, made = await loop.create_unix_connection(
                lambda: _Connection(self), address
            )
        else:
            _, made = await loop.create_connection(
                lambda: _Connection(self), *address, ssl=self.tls
            )
        self.connections.add(made)
        return made

    def free(self, connection: _Connection) -> None:
        if not self.over:
            connection.post(_clock())

    def replace(self, connection: _Connection) -> None:
        """Connect again, because the server has announced its last answer."""
        self.connections.discard(connection)
        if connection.transport is not None:
            connection.transport.abort()
        if not self.over:
            task = asyncio.get_running_loop().create_task(self._connect_again())
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect_again(self) -> None:
        try:
            self.free(await self.connect())
        except OSError:
            self.run.add_broken()

    def lost(self, connection: _Connection) -> None:
        if connection in self.connections and not self.over:
            self.run.add_broken()
        self.connections.discard(connection)

    def end(self) -> None:
        self.over = True
        for task in self._connecting:
            task.cancel()
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()


class _OpenGenerator(_Generator):
    """Send due requests; a request without a free connection waits for one."""

    def __init__(
        self,
        address: tuple[str, int] | str,
        requests: Sequence[bytes],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(address, requests, tls)
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
    """Calls back at absolute times, within some tens of microseconds.

    An event loop's own timers have only milliseconds.
    """

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


class _AloneConnection:
    """A single connection in its thread: one system call to send, one to receive.

    A context manager that closes the connection.
    """

    def __init__(self, address: tuple[str, int] | str) -> None:
        self._address = address
        self._socket = _connected(address)
        self._buffer = bytearray(_ROOM)
        # Bytes of the last answer, and the compared places of its head. An answer with
        # equal bytes there is complete too, while its request id may differ.
        self._size, self._length, self._length_at, self._end_at = -1, b"", 0, 0
        self._reason = ""  # the reason why the last answer failed
        self._is_last = False  # of its connection

    def __enter__(self) -> _AloneConnection:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def keep_busy(
        self, requests: Sequence[bytes], seconds: float, stopped: Callable[[], int]
    ) -> RunRecord:
        """Run a closed loop until its end, or until the connection is lost; return the
        results.
        """
        run = RunRecord()
        buffer, is_there = self._buffer, self._buffer.startswith
        send, receive = self._socket.send, self._socket.recv_into
        started, used = _clock(), time.process_time()
        end = started + seconds
        begun = started
        try:
            for request in cycle(requests):
                run.sent += 1
                if (sent := send(request)) < len(request):
                    self._send_rest(request, sent, end, stopped)
                try:
                    size = receive(buffer)
                except BlockingIOError:
                    size = self._wait(end, stopped)
                ok = (
                    size == self._size
                    and is_there(b"HTTP/1.1 200")
                    and is_there(self._length, self._length_at)
                    and is_there(b"\r\n\r\n", self._end_at)
                ) or self._read_on(size, end, stopped)
                now = _clock()
                run.add(ok, begun, now, self._reason)
                if now >= end or stopped():
                    break
                if self._is_last:
                    self._socket.close()
                    self._socket = _connected(self._address)
                    send, receive = self._socket.send, self._socket.recv_into
                begun = now
        except TimeoutError:
            pass
        except (OSError, ValueError):
            run.add_broken()
        run.end(started, used)
        return run

    def _send_rest(
        self, request: bytes, sent: int, end: float, stopped: Callable[[], int]
    ) -> None:
        """Send a request from its byte `sent` on, as the server reads it. Raises
        TimeoutError at the end.
        """
        rest = memoryview(request)[sent:]
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                if _clock() >= end or stopped():
                    raise TimeoutError from None

    def _wait(self, end: float, stopped: Callable[[], int]) -> int:
        """Return the size of the next chunk. Raises TimeoutError at the end."""
        while _clock() < end and not stopped():
            try:
                return self._socket.recv_into(self._buffer)
            except BlockingIOError:
                pass
        raise TimeoutError

    def _read_on(self, size: int, end: float, stopped: Callable[[], int]) -> bool:
        """Receive the rest of an answer, of which `size` bytes have arrived, and
        remember its form. Return whether its status is 200.
        """
        head = b""
        while True:
            if not size:
                raise ConnectionResetError
            head += self._buffer[:size]
            if (at := head.find(b"\r\n\r\n")) >= 0:
                break
            size = self._wait(end, stopped)
        ok, length = read_head(head[:at])
        self._is_last = is_last(head[: at + 2])
        if length == CHUNKED:
            return self._read_chunks(ok, head, at + 4, end, stopped)
        if length < 0:  # the body has no visible end
            raise ConnectionResetError
        missing = at + 4 + length - len(head)
        self._size = -1
        if not missing and len(head) == size:
            self._length_at = head[:at].lower().find(b"\r\ncontent-length:")
            self._length = head[self._length_at :].split(b"\r\n", 2)[1]
            self._length = b"\r\n" + self._length + b"\r\n"
            self._size, self._end_at = size, at
        while missing > 0:
            size = self._wait(end, stopped)
            if not size:
                raise ConnectionResetError
            missing -= size
            if not ok:
                head += self._buffer[: min(size, KEPT)]
        self._reason = "" if ok else reason_of(head[: at + KEPT])
        return ok

    def _read_chunks(
        self, ok: bool, head: bytes, at: int, end: float, stopped: Callable[[], int]
    ) -> bool:
        """Receive the rest of a chunked body, which begins at `at`. Return whether
        the answer is 200 and no event of it is an error."""
        self._size = -1
        chunks, data = ChunkedBody(), head[at:]
        while not chunks.feed(data):
            size = self._wait(end, stopped)
            if not size:
                raise ConnectionResetError
            data = bytes(self._buffer[:size])
        self._reason = chunks.error or ("" if ok else reason_of(head[:at]))
        return not self._reason


def _connected(address: tuple[str, int] | str) -> socket.socket:
    """Return a connection whose calls wait a limited time."""
    if isinstance(address, str):
        made = socket.socket(socket.AF_UNIX)
        made.connect(address)
    else:
        made = socket.create_connection(address)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Let the kernel limit the time: Python's own timeouts poll before each call.
    for which in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        made.setsockopt(socket.SOL_SOCKET, which, _LOOK)
    return made


async def closed_loop(
    address: tuple[str, int] | str,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    tls: ssl.SSLContext | None = None,
) -> RunRecord:
    """Keep a number of connections busy for a time. Raises OSError if there is no
    server.

    One connection blocks the event loop meanwhile, until the task is cancelled.
    """
    if connections == 1 and tls is None:
        task = asyncio.current_task()
        assert task is not None
        with _AloneConnection(address) as alone:
            return alone.keep_busy(requests, seconds, task.cancelling)
    generator = _Generator(address, requests, tls)
    opened = [await generator.connect() for _ in range(connections)]
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
    tls: ssl.SSLContext | None = None,
) -> RunRecord:
    """Send requests when they are due, `gaps` seconds after each other, over a limited
    number of connections.

    Raises OSError if there is no server.
    """
    generator = _OpenGenerator(address, requests, tls)
    generator.idle.extend([await generator.connect() for _ in range(connections)])
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


def _finished(generator: _Generator, started: float, used: float) -> RunRecord:
    generator.run.end(started, used)
    generator.end()
    return generator.run
