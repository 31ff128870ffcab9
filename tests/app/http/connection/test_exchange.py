"""An exchange whose answer cannot be made: it is answered all the same, counted once,
and no request behind it waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from uvicorn.server import ServerState

from app.http.connection.ends import Ends
from app.http.connection.exchange import CommonHead, Exchange
from app.http.connection.response_framing import CLOSE_HEADER
from app.serving.service import Service
from app.serving.transfer_memory import Share
from engine import Buffer, DeviceLost
from tests.app.fronts import Doubler, Submitted, front

PATH = "/v1/models/m/infer"
BODY = b'{"inputs":{"x":[1,2]}}'


class Wire:
    """What is written to a connection; `broken`: it cannot be."""

    def __init__(self, broken: bool = False) -> None:
        self.written = b""
        self.state = "open"
        self._broken = broken

    def get_extra_info(self, name: str) -> Any:
        """Nothing is known of it."""

    def is_closing(self) -> bool:
        return self.state != "open"

    def write(self, data: Buffer) -> None:
        if self._broken:
            raise MemoryError
        self.written += bytes(data)

    def writelines(self, pieces: list[Buffer]) -> None:
        for piece in pieces:
            self.write(piece)

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"


class Connection:
    """A connection with one exchange on it."""

    def client_of(self, headers: Mapping[bytes, bytes]) -> str:
        """Nobody is known."""
        return ""

    def __init__(self, service: Service, *, broken: bool = False) -> None:
        self.service = service
        self.wire = Wire(broken)
        self.transport: Any = self.wire
        self.server_state: Any = ServerState()
        self.base = ""
        self.ends = Ends(None, None, "http", ())
        self.held = Share(service.transfers)
        self.common = CommonHead()
        self.completed = 0

    def on_exchange_complete(self) -> None:
        self.completed += 1

    def failures(self) -> int:
        """Requests of the model that are counted as failed, if none is pending."""
        stats = self.service.models.paths[PATH].stats
        assert stats.pending == 0
        document: Any = stats.statistics()
        return int(document["inference_stats"]["fail"]["count"])

    def answer(self) -> tuple[int, Any]:
        """The one that was written, whole."""
        head, _, body = self.wire.written.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}\r\n".encode() in head + b"\r\n"
        return int(head.split()[1]), json.loads(body)


class Unspeakable(DeviceLost):
    """An error for whose words there is no memory."""

    def __str__(self) -> str:
        raise MemoryError


def begun(*, broken: bool = False) -> tuple[Connection, Exchange, Submitted]:
    """A request that waits for its result."""
    runner = Doubler("never")
    connection = Connection(front(runner).service, broken=broken)
    exchange = Exchange(connection.service, PATH, PATH, {}, connection, True)
    exchange.body = [BODY]
    exchange.begin()
    (submitted,) = runner.submitted
    return connection, exchange, submitted


def test_an_answer_that_cannot_be_encoded_is_an_error_of_ours() -> None:
    async def check() -> None:
        connection, exchange, submitted = begun()
        submitted.done, submitted.outputs = True, {}
        exchange.done(submitted)
        status, document = connection.answer()
        assert (status, document["code"]) == (500, "internal_error")
        assert "the server's log" in document["error"]
        assert connection.failures() == 1
        # The connection goes on with the request behind it.
        assert (connection.wire.state, connection.completed) == ("open", 1)
        assert exchange.response_complete
        exchange.done(submitted)  # the second time, nobody listens
        assert connection.completed == 1

    asyncio.run(check())


def test_the_last_answer_says_so_once() -> None:
    async def check() -> None:
        for headers in ([], [CLOSE_HEADER]):  # while the server runs, when it ends
            connection, exchange, submitted = begun()
            connection.server_state.default_headers = headers
            exchange.keep_alive = False
            submitted.done, submitted.outputs = True, {}
            exchange.done(submitted)
            assert connection.wire.written.count(b"connection: close\r\n") == 1
            assert connection.wire.state == "closed"

    asyncio.run(check())


def test_what_cannot_be_told_is_answered_with_what_was_prepared() -> None:
    async def check() -> None:
        connection, exchange, submitted = begun()
        with pytest.raises(MemoryError):
            submitted.resolve(Unspeakable())
        status, document = connection.answer()
        assert status == 500
        assert document["error"] == "the server has no memory left for this answer"
        assert document["code"] == "internal_error"
        assert b"connection: close" in connection.wire.written
        assert connection.wire.state == "closed"
        assert exchange.response_complete
        assert connection.failures() == 1

    asyncio.run(check())


def test_an_answer_that_went_half_ends_its_connection() -> None:
    async def check() -> None:
        connection, exchange, submitted = begun(broken=True)
        with pytest.raises(MemoryError):
            submitted.resolve()
        assert connection.wire.state == "aborted"
        assert (connection.wire.written, connection.completed) == (b"", 0)
        assert exchange.response_complete

    asyncio.run(check())


def test_nothing_is_written_to_who_has_gone() -> None:
    async def check() -> None:
        connection, exchange, submitted = begun()
        connection.wire.close()
        submitted.resolve(DeviceLost("it died"))
        assert connection.wire.written == b""
        assert exchange.response_complete
        assert connection.failures() == 1

    asyncio.run(check())
