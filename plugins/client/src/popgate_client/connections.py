"""Connections of the blocking client: HTTP/1.1 over TCP or a Unix socket.

One exchange costs two system calls and no copy of a tensor. TLS, proxies and streams
are httpx's (`web.py`).
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque

from popgate_client.encodings import Parts, size_of
from popgate_client.errors import ClientError, ConnectionFailed, DeadlineExceeded
from popgate_client.http1 import Answer, AnswerReader
from popgate_client.steps import Options, RoundTrip

_clock = time.monotonic
#: Differences between timeouts below this are ignored.
_SAME = 0.9
#: Most pieces of one system call.
_MOST_PARTS = 1024


def late(sent: bool, what: str) -> DeadlineExceeded:
    """Return the error if the client's own time limit has passed."""
    return DeadlineExceeded(f"no {what} in time (timeout)", sent=sent)


class ServerConnection:
    """A connection that is open. Not thread-safe."""

    __slots__ = ("_poll", "_reader", "_socket", "_timeout", "used")

    def __init__(self, options: Options, deadline: float) -> None:
        timeout = min(options.connect_timeout, deadline - _clock())
        if timeout <= 0:
            raise late(False, "connection")
        self._socket = _connect(options, timeout)
        self._timeout = timeout
        self._reader = AnswerReader(options.max_answer)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self.used = False

    def is_stale(self) -> bool:
        """Return whether the server has closed it, or has sent unexpected bytes."""
        return bool(self._poll.poll(0))

    def exchange(self, ask: RoundTrip) -> Answer:
        """Send a request and read its answer."""
        self.used = True
        try:
            self._send([ask.request.head, *ask.parts], ask.deadline)
        except TimeoutError:
            raise late(True, "room to send the request") from None
        except OSError as e:
            # The answer that the server sent before closing explains more.
            if (answer := self._last_words(ask.deadline)) is not None:
                return answer
            msg = f"the connection ended while the request was sent: {e}"
            raise ConnectionFailed(msg, sent=True) from None
        return self._read(ask.deadline)

    def _read(self, deadline: float) -> Answer:
        reader = self._reader
        reader.reset()
        answer = None
        try:
            while answer is None:
                self._wait(deadline)
                count = self._socket.recv_into(reader.buffer())
                answer = reader.received(count) if count else reader.ended()
        except TimeoutError:
            raise late(True, "answer") from None
        except ClientError:
            raise
        except OSError as e:
            msg = f"the connection broke before the answer was complete: {e}"
            raise ConnectionFailed(msg, sent=True) from None
        return answer

    def _last_words(self, deadline: float) -> Answer | None:
        try:
            answer = self._read(deadline)
        except ClientError:
            return None
        answer.keep = False
        return answer

    def _send(self, parts: Parts, deadline: float) -> None:
        self._wait(deadline)
        first = parts[:_MOST_PARTS]
        sent = self._socket.sendmsg(first)  # type: ignore[arg-type] # arrays, too
        if sent == sum(map(size_of, parts)):
            return
        for part in parts:
            if sent >= (size := size_of(part)):
                sent -= size
                continue
            whole = memoryview(part) if isinstance(part, bytes) else part.data.cast("B")
            rest = whole[sent:]
            sent = 0
            while rest:
                self._wait(deadline)
                rest = rest[self._socket.send(rest) :]

    def _wait(self, deadline: float) -> None:
        """Set the timeout of the next call to `deadline`."""
        left = deadline - _clock()
        if left <= 0:
            raise TimeoutError
        if not _SAME * self._timeout <= left <= self._timeout:
            self._timeout = min(left, threading.TIMEOUT_MAX)
            self._socket.settimeout(self._timeout)

    def close(self) -> None:
        self._socket.close()


class Pool:
    """Pool of open connections to one server, of limited size. Thread-safe.

    In a forked process it starts again, with its own connections.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._idle: deque[ServerConnection] = deque()
        self._open = 0
        self._closed = False
        self._changed = threading.Condition(threading.Lock())

    def exchange(self, ask: RoundTrip) -> Answer:
        """Perform one exchange on a free connection. Raises `ClientError`."""
        if self._process != os.getpid():
            for inherited in self._idle:  # the parent keeps its own
                inherited.close()
            self._begin()
        connection = self._take(ask.deadline)
        try:
            if connection is None:
                connection = ServerConnection(self._options, ask.deadline)
            answer = connection.exchange(ask)
        except BaseException:
            self._give_back(connection, keep=False)
            raise
        self._give_back(connection, keep=answer.keep)
        return answer

    def _take(self, deadline: float) -> ServerConnection | None:
        """Return an open connection, or None if the caller may open one."""
        with self._changed:
            while True:
                if self._closed:
                    raise ClientError("the client is closed")
                while self._idle:
                    connection = self._idle.pop()
                    if not connection.is_stale():
                        return connection
                    connection.close()
                    self._open -= 1
                if self._open < self._options.max_connections:
                    self._open += 1
                    return None
                left = min(deadline - _clock(), threading.TIMEOUT_MAX)
                if left <= 0 or not self._changed.wait(left):
                    raise late(False, "free connection")

    def _give_back(self, connection: ServerConnection | None, *, keep: bool) -> None:
        with self._changed:
            if keep and connection is not None and not self._closed:
                self._idle.append(connection)
            else:
                self._open -= 1
                if connection is not None:
                    connection.close()
            self._changed.notify()

    def close(self) -> None:
        """Close idle connections; a connection in use is closed when its call ends."""
        with self._changed:
            self._closed = True
            while self._idle:
                self._idle.pop().close()
                self._open -= 1
            self._changed.notify_all()


def _connect(options: Options, timeout: float) -> socket.socket:
    try:
        if isinstance(options.address, str):
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                opened.settimeout(timeout)
                opened.connect(options.address)
            except BaseException:
                opened.close()
                raise
            return opened
        opened = socket.create_connection(options.address, timeout)
    except OSError as e:
        raise no_connection(options, e) from None
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def no_connection(options: Options, why: Exception) -> ConnectionFailed:
    """Return the error if a server cannot be reached."""
    return ConnectionFailed(
        f"no connection to {options.url}: "
        f"{why or 'no answer in time (connect_timeout)'}"
    )
