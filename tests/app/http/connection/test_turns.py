"""What need not be done at once has a part of each turn of the event loop.

Covers: app/http/connection/turns.py.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Self

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from app.http.asgi import Receive, Scope, Send
from app.http.connection.dispatch import Dispatch
from app.http.connection.protocol import GatewayProtocol, Listener
from app.http.connection.turns import LONG, MOST_READS, PART, READ, ReadBudget, Turns
from app.http.connection_limit import ConnectionLimit
from app.http.floods import Floods
from app.http.front import InferFront
from app.serving.service import Service
from app.serving.table import ModelTable
from tests.support import WAIT

CROWD = 12
CHUNKED = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Loop:
    """The turns of an event loop, taken one by one."""

    def __init__(self) -> None:
        self.asyncio = asyncio.new_event_loop()

    def turn(self) -> None:
        self.asyncio.call_soon(self.asyncio.stop)
        self.asyncio.run_forever()


def test_so_many_have_a_turn_as_there_is_time_for() -> None:
    loop, clock = Loop(), Clock()
    turns, gone = Turns(clock), list[int]()

    def taking(seconds: float, number: int, is_all: bool = True) -> None:
        def go_on() -> bool:
            gone.append(number)
            clock.now += seconds
            return is_all

        turns.wait(go_on, loop.asyncio)

    for number in range(5):
        taking(PART / 2, number)
    loop.turn()
    assert gone == [0, 1]
    taking(0, 5, is_all=False)  # goes on in a task
    taking(0, 6)
    loop.turn()
    assert gone == [0, 1, 2, 3]
    loop.turn()
    assert gone == [0, 1, 2, 3, 4, 5]
    loop.turn()
    assert gone == [0, 1, 2, 3, 4, 5, 6]
    loop.asyncio.close()


def test_one_that_fails_holds_nobody_up() -> None:
    loop, told, gone = Loop(), list[object](), list[int]()
    loop.asyncio.set_exception_handler(lambda _, c: told.append(c["exception"]))
    turns = Turns()

    def fail() -> bool:
        raise ValueError

    turns.wait(fail, loop.asyncio)
    turns.wait(lambda: gone.append(1), loop.asyncio)
    loop.turn()
    loop.turn()
    assert [type(each) for each in told] == [ValueError]
    assert gone == [1]
    loop.asyncio.close()


class Gateway:
    """Connections to an application, in this process."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        front = InferFront(app, Service(ModelTable()))
        self._config = uvicorn.Config(front, lifespan="off", log_config=None)
        limit = ConnectionLimit(sys.maxsize)
        listener = Listener(Dispatch(front), Floods(), limit)
        self._make = partial(GatewayProtocol, listener)
        self._stack = ExitStack()

    async def connect(self) -> tuple[GatewayProtocol, socket.socket]:
        loop = asyncio.get_running_loop()
        ours, theirs = map(self._stack.enter_context, socket.socketpair())
        theirs.setblocking(False)
        _, protocol = await loop.connect_accepted_socket(
            lambda: self._make(
                config=self._config,
                server_state=ServerState(),
                app_state={},
                _loop=loop,
            ),
            ours,
        )
        self._stack.callback(protocol.transport.abort)
        return protocol, theirs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


async def _answer(wire: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    return await asyncio.wait_for(loop.sock_recv(wire, 1 << 16), WAIT)


async def _start_a_crowd() -> None:
    loop = asyncio.get_running_loop()
    number, started, all_have = 0, list[int](), asyncio.Event()

    def count() -> None:
        nonlocal number
        number += 1
        if not all_have.is_set():
            loop.call_soon(count)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        started.append(number)
        if len(started) == 2 * CROWD:
            all_have.set()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"."})

    with Gateway(app) as gateway:
        wires = [await gateway.connect() for _ in range(CROWD)]
        count()
        for protocol, _ in wires:  # as if all had been read in one turn
            protocol.data_received(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        for _, wire in wires:
            assert (await _answer(wire)).startswith(b"HTTP/1.1 200")
        await asyncio.wait_for(all_have.wait(), WAIT)
        assert len(set(started)) == 2 * CROWD


async def _send_small_chunks(rest: bytes) -> None:
    sizes = list[int]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            sizes.append(len(message.get("body", b"")))
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"."})

    with Gateway(app) as gateway:
        protocol, wire = await gateway.connect()
        protocol.data_received(CHUNKED + b"1\r\n.\r\n" * 100_000)
        protocol.data_received(b"1\r\n.\r\n" * 100_000)
        protocol.data_received(rest)
        assert (await _answer(wire)).startswith(b"HTTP/1.1 200")
    assert sum(sizes) == 200_000 + rest.count(b".")
    assert max(sizes) <= 10_000


def test_requests_of_a_crowd_have_a_turn_each() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_start_a_crowd())


@pytest.mark.parametrize(
    "rest",
    [b"0\r\n\r\n", b"4\r\n....\r\n0\r\na: b\r\n\r\n", b"2\r\n..\r\n0\r\n\r\nGET"],
)
def test_a_body_in_small_chunks_is_parsed_in_parts(rest: bytes) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_send_small_chunks(rest))


async def turns_of_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_turn_has_so_many_bytes_and_the_next_one_as_many() -> None:
    async def spend() -> None:
        budget, loop = ReadBudget(Clock()), asyncio.get_running_loop()
        most = MOST_READS * READ
        for _ in range(3):
            assert not budget.spend(most // 2, loop)
            assert not budget.spend(most // 4, loop)
            assert budget.spend(most // 2, loop)
            assert budget.spend(1, loop)
            await turns_of_loop(2)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(spend())


def test_all_that_wait_go_on_in_their_order_some_in_a_turn() -> None:
    async def wait() -> None:
        budget, loop = ReadBudget(Clock()), asyncio.get_running_loop()
        gone_on: list[int] = []
        for number in range(10):
            assert budget.spend(MOST_READS * READ, loop)
            budget.wait(lambda number=number: gone_on.append(number))  # type: ignore[misc]
        assert gone_on == []
        await turns_of_loop(1)
        assert 0 < len(gone_on) < 10
        await turns_of_loop(4)
        assert gone_on == [*range(10)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(wait())


def test_fewer_go_on_after_long_turns() -> None:
    async def wait() -> None:
        clock = Clock()
        budget, loop = ReadBudget(clock), asyncio.get_running_loop()
        gone_on: list[int] = []

        async def turn(seconds: float) -> int:
            before = len(gone_on)
            clock.now += seconds
            await turns_of_loop(1)
            return len(gone_on) - before

        for number in range(40):
            budget.spend(READ, loop)
            budget.wait(lambda number=number: gone_on.append(number))  # type: ignore[misc]
        assert [await turn(2 * LONG) for _ in range(4)] == [2, 1, 1, 1]
        assert [await turn(LONG / 2) for _ in range(4)] == [2, 3, 4, 4]
        assert [await turn(2 * LONG) for _ in range(2)] == [2, 1]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(wait())


def test_a_turn_also_reads_so_much_of_what_is_dropped() -> None:
    async def drop() -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            raise AssertionError("there is no request")

        with Gateway(app) as gateway:
            protocol, wire = await gateway.connect()
            protocol.data_received(b"no request\r\n\r\n")
            assert (await _answer(wire)).startswith(b"HTTP/1.1 400")
            for _ in range(MOST_READS - 1):
                protocol.data_received(bytes(READ))
            assert not protocol.flow.is_held
            protocol.data_received(bytes(READ))
            assert protocol.flow.is_held
            await turns_of_loop(2)
            assert not protocol.flow.is_held

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(drop())
