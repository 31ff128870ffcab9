"""One request of an application: ASGI on one side, a connection on the other."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from uvicorn.server import ServerState

from app.codec.messages import Header
from app.http.asgi import WHOLE, Receive, Scope, Send
from app.http.connection.cycle import AsgiCycle
from app.http.connection.flow import Flow
from app.http.connection.framing import Head
from app.serving.transfer_memory import Share, TransferMemory

App = Callable[[Scope, Receive, Send], Awaitable[None]]
START = {"type": "http.response.start", "status": 200, "headers": []}


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""


class Connection:
    def __init__(
        self, *headers: Header, method: bytes = b"POST", version: str = "1.1"
    ) -> None:
        self.transport: asyncio.Transport = Transport()
        self.flow = Flow(self.transport, Share(TransferMemory()))
        self.server_state = ServerState()
        self.server_state.default_headers = [(b"date", b"today")]
        self.ending = self
        self.completed = self.dropped = 0
        head = Head(method, b"/x", version, list(headers), True, -1)
        self.cycle = AsgiCycle({"path": "/x"}, head, self)

    def on_exchange_complete(self) -> None:
        self.completed += 1

    def drop_rest(self, refusals: float) -> None:
        self.dropped += 1
        self.transport.close()

    @property
    def written(self) -> bytes:
        assert isinstance(self.transport, Transport)
        return self.transport.written

    def run(self, app: App) -> None:
        asyncio.run(self.cycle.run(app))


@pytest.mark.parametrize(
    ("version", "ending"),
    [("1.1", b"\r\n\r\n2\r\nhe\r\n0\r\n\r\n"), ("1.0", b"\r\n\r\nhe")],
)
def test_only_newer_clients_get_chunks(version: str, ending: bytes) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"he", "more_body": True})
        await send({"type": "http.response.body"})

    connection = Connection(version=version)
    connection.run(app)
    assert connection.written.endswith(ending)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        more = message["more_body"]
    await send(START)
    await send({"type": "http.response.body", "body": body})


def test_a_body_in_parts_is_answered() -> None:
    async def check() -> None:
        connection = Connection()
        cycle = connection.cycle
        task = asyncio.ensure_future(cycle.run(echo))
        for part in (b"a", b"b"):
            cycle.receive_body([part])
            await asyncio.sleep(0)
        cycle.end_body()
        await task
        assert connection.written.startswith(b"HTTP/1.1 200 OK\r\ndate: today\r\n")
        assert connection.written.endswith(b"2\r\nab\r\n0\r\n\r\n")
        assert (connection.completed, connection.transport.is_closing()) == (1, False)
        assert cycle.response_complete
        assert (await cycle.receive())["type"] == "http.disconnect"

    asyncio.run(check())


def test_expect_is_answered_when_the_body_is_asked_for() -> None:
    connection = Connection((b"expect", b"100-Continue"))
    connection.cycle.end_body()
    connection.run(echo)
    assert connection.written.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


def test_clients_of_http_1_0_get_no_100() -> None:
    connection = Connection((b"expect", b"100-continue"), version="1.0")
    connection.cycle.end_body()
    connection.run(echo)
    assert connection.written.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("came", "is_whole", "dropped"),
    [(b"", False, 1), (b"he", False, 0), (b"", True, 0)],
)
def test_a_body_that_was_not_asked_for_may_be_another_request(
    came: bytes, is_whole: bool, dropped: int
) -> None:
    connection = Connection((b"expect", b"100-continue"))
    connection.cycle.receive_body([came] if came else [])
    if is_whole:
        connection.cycle.end_body()

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body"})

    connection.run(refuse)
    assert connection.transport.is_closing() is bool(dropped)
    assert connection.dropped == dropped
    assert (b"connection: close\r\n" in connection.written) is bool(dropped)


def test_the_last_answer_closes_the_connection() -> None:
    connection = Connection()
    connection.cycle.be_last()
    connection.cycle.end_body()
    connection.run(echo)
    assert b"connection: close\r\n" in connection.written
    assert connection.transport.is_closing()


def test_who_has_gone_gets_nothing() -> None:
    connection = Connection()
    connection.cycle.drop()
    connection.run(echo)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)

    connection.run(answer)
    assert connection.written == b""
    assert connection.completed == 0


@pytest.mark.parametrize("is_whole", [True, False])
def test_who_has_gone_had_sent_a_whole_request_or_half_of_one(is_whole: bool) -> None:
    cycle = Connection().cycle
    cycle.receive_body([b"a"])
    if is_whole:
        cycle.end_body()
    cycle.drop()
    gone = {"type": "http.disconnect", WHOLE: is_whole}
    assert asyncio.run(cycle.receive()) == gone


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """No answer."""


async def _raise(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("mine")


async def _half(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)


async def _half_and_raise(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    raise ValueError("mine")


async def _body_first(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.body", "body": b"."})


async def _twice(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    await send(START)


@pytest.mark.parametrize(
    ("app", "is_answered"),
    [
        (_nothing, True),
        (_raise, True),
        (_body_first, True),
        (_half, False),
        (_half_and_raise, False),
        (_twice, False),
    ],
)
def test_an_application_that_fails_ends_its_connection(
    app: App, is_answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    connection = Connection()
    with caplog.at_level(logging.ERROR):
        connection.run(app)
    assert len(caplog.records) == 1
    assert connection.transport.is_closing()
    head, _, body = connection.written.partition(b"\r\n\r\n")
    if is_answered:
        assert head.startswith(b"HTTP/1.1 500")
        assert json.loads(body)["code"] == "internal_error"
        assert connection.completed == 1
    else:
        assert head.startswith(b"HTTP/1.1 200")
        assert body == b""
