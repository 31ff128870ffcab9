"""Connections of the client for event loops: HTTP/1.1 over TCP or a Unix socket."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from typing import cast

from popgate_client.connections import late, no_connection
from popgate_client.errors import ClientError, ConnectionFailed
from popgate_client.http1 import Answer, AnswerReader
from popgate_client.steps import Options, RoundTrip

_clock = time.monotonic
#: Tensors of at most this many bytes are cheaper to copy than to send separately.
_JOINED = 1 << 16


class AsyncConnection(asyncio.BufferedProtocol):
    """An open connection, with one exchange at a time."""

    def __init__(self, options: Options) -> None:
        self._reader = AnswerReader(options.max_answer)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self.broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has no base

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # unexpected bytes
            return
        try:
            answer = self._reader.received(nbytes)
        except ClientError as error:
            self._answer.set_exception(error)
            self.close()
        else:
            if answer is not None:
                self._answer.set_result(answer)

    def eof_received(self) -> bool:
        self.broken = True
        if self._answer is not None and not self._answer.done():
            try:
                self._answer.set_result(self._reader.ended())
            except ClientError as error:
                self._answer.set_exception(error)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.broken = True
        self._room.set()
        if self._answer is not None and not self._answer.done():
            msg = "the connection broke before the answer was complete"
            why = f"{msg}: {exc}" if exc else msg
            self._answer.set_exception(ConnectionFailed(why, sent=True))

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def exchange(self, ask: RoundTrip) -> Answer:
        """Send a request and wait for its answer without limit."""
        assert self._transport is not None
        self._reader.reset()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._answer = answer
        pieces = [ask.request.head]
        for part in ask.parts:
            if isinstance(part, bytes):
                pieces.append(part)
            elif part.nbytes > _JOINED:
                self._transport.write(b"".join(pieces))
                self._transport.write(part.data.cast("B"))
                pieces.clear()
            else:
                pieces.append(part.tobytes())
        self._transport.write(b"".join(pieces))
        if not self._room.is_set():
            await self._room.wait()
        return await answer

    def close(self) -> None:
        self.broken = True
        if self._transport is not None:
            self._transport.abort()


class AsyncPool:
    """Pool of open connections to one server, of limited size, in one event loop.

    In another event loop, or a forked process, it starts again.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._idle: deque[AsyncConnection] = deque()
        self._open = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def exchange(self, ask: RoundTrip) -> Answer:
        """Perform one exchange on a free connection. Raises `ClientError`."""
        if self._closed:
            raise ClientError("the client is closed")
        loop = asyncio.get_running_loop()
        if loop is not self._loop or self._process != os.getpid():
            self._loop = loop
            self._begin()
        left = min(ask.deadline - _clock(), threading.TIMEOUT_MAX)
        if left <= 0:
            raise late(False, "connection")
        sent = False
        connection = None
        keep = False
        try:
            async with asyncio.timeout(left):
                await self._room_for_one()
                try:
                    connection = self._usable() or await self._connect()
                    sent = True
                    answer = await connection.exchange(ask)
                    keep = answer.keep and not connection.broken
                finally:
                    self._give_back(connection, keep=keep)
        except TimeoutError:
            raise late(sent, "answer" if sent else "free connection") from None
        return answer

    async def _room_for_one(self) -> None:
        while self._open >= self._options.max_connections:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()  # wake the next waiting call
                raise
        self._open += 1

    def _usable(self) -> AsyncConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.broken:
                return connection
        return None

    async def _connect(self) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        options = self._options
        try:
            async with asyncio.timeout(options.connect_timeout):
                if isinstance(options.address, str):
                    _, made = await loop.create_unix_connection(
                        lambda: AsyncConnection(options), options.address
                    )
                else:
                    _, made = await loop.create_connection(
                        lambda: AsyncConnection(options), *options.address
                    )
        except OSError as e:  # TimeoutError too
            raise no_connection(options, e) from None
        return made

    def _give_back(self, connection: AsyncConnection | None, *, keep: bool) -> None:
        self._open -= 1
        if connection is not None:
            if keep and not self._closed:
                self._idle.append(connection)
            else:
                connection.close()
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def close(self) -> None:
        """Close idle connections; a connection in use is closed when its call ends."""
        self._closed = True
        running = self._loop is not None and not self._loop.is_closed()
        while self._idle:
            connection = self._idle.pop()
            if running and self._process == os.getpid():
                connection.close()
