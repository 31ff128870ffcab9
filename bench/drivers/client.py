"""A small HTTP/1.1 client over asyncio streams that reports exactly what happened.

Ordinary clients retry, pool and translate errors. A test must know whether an answer
began, was cut, or never arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bench.cases.payloads import Payload


class NoAnswer(ConnectionError):
    """The connection ended before the first byte of the answer: safe to send again."""


class CutAnswer(ConnectionError):
    """The connection ended in the middle of an answer. Never acceptable."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def last(self) -> bool:
        """The server will close the connection after this answer."""
        return self.headers.get("connection", "").lower() == "close"


class Client:
    """One keep-alive connection, opened when first used. Not for two tasks at once.

    `timeout`: seconds that one exchange may take before it raises TimeoutError.
    """

    def __init__(self, host: str, port: int, *, timeout: float = 30.0) -> None:
        self._address = (host, port)
        self._timeout = timeout
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._streams is not None:
            writer = self._streams[1]
            self._streams = None
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def get(self, path: str) -> Answer:
        return await self._exchange("GET", path, Payload({}, b""))

    async def post(self, path: str, payload: Payload) -> Answer:
        """Send and wait for the whole answer.

        Raises:
            NoAnswer: the server closed the connection or refused it, no byte came.
            CutAnswer: it closed the connection within the answer.
            TimeoutError: nothing, or not all, came in time.
        """
        return await self._exchange("POST", path, payload)

    async def _exchange(self, method: str, path: str, payload: Payload) -> Answer:
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._send_and_read(method, path, payload)
        except BaseException:
            await self.close()
            raise
        if answer.last:
            await self.close()
        return answer

    async def _send_and_read(self, method: str, path: str, payload: Payload) -> Answer:
        host, port = self._address
        lines = [f"{method} {path} HTTP/1.1", f"host: {host}:{port}"]
        lines += [f"{name}: {value}" for name, value in payload.headers.items()]
        if method != "GET":
            lines.append(f"content-length: {len(payload.body)}")
        request = "\r\n".join([*lines, "", ""]).encode() + payload.body
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(host, port, limit=2**20)
            reader, writer = self._streams
            writer.write(request)
            await writer.drain()
        except ConnectionError as error:
            raise NoAnswer(str(error)) from error
        return await _read_answer(reader)


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except ConnectionError as error:
        raise NoAnswer(str(error)) from error
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise CutAnswer(f"head cut after {error.partial!r}") from error
        raise NoAnswer("closed") from error
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    size = int(headers.get("content-length", 0))
    try:
        body = await reader.readexactly(size)
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        raise CutAnswer(f"body of {size} bytes cut: {error}") from error
    return Answer(int(first.split(" ", 2)[1]), headers, body)
