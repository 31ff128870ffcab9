"""Requests with many rows share the engine, and give few of them at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate_text.feeding import AT_FIRST, IN_FLIGHT, Feeding


class Engine:
    """Rows in flight, with the requests that they belong to."""

    def __init__(self) -> None:
        self.rows: list[tuple[Request, int]] = []
        self.feeding: Feeding[Request] = Feeding()

    def finish(self, count: int) -> None:
        """End the oldest rows."""
        for _ in range(min(count, len(self.rows))):
            request, number = self.rows.pop(0)
            del request.running[number]
            self.feeding.go_on(request)


class Request:
    """A request with `rows` rows; the engine refuses row `bad`."""

    def __init__(self, engine: Engine, rows: int, bad: int = -1) -> None:
        self.engine = engine
        self.rows_left, self.bad = rows, bad
        self.running: dict[int, Any] = {}
        self.done = False
        self.error: Exception | None = None

    def feed(self) -> bool:
        number = self.rows_left
        if number == self.bad:
            raise ValueError("refused")
        self.rows_left -= 1
        self.running[number] = self
        self.engine.rows.append((self, number))
        return True

    def resolve(self, error: Exception | None = None) -> None:
        self.done, self.error = True, error
        self.engine.feeding.leave(self)


async def settle(engine: Engine) -> None:
    """Let the event loop run until no more rows come."""
    before = -1
    while before != len(engine.rows):
        before = len(engine.rows)
        for _ in range(20):
            await asyncio.sleep(0)


def test_requests_with_many_rows_share_what_one_may_have() -> None:
    async def ask() -> None:
        engine = Engine()
        many = [Request(engine, 1000) for _ in range(4)]
        engine.feeding.begin(many[0])
        await settle(engine)
        assert len(engine.rows) == IN_FLIGHT
        for one in many[1:]:
            engine.feeding.begin(one)
        for _ in range(20):
            engine.finish(32)
            await settle(engine)
        assert all(one.rows_left for one in many)
        assert {len(one.running) for one in many} == {IN_FLIGHT // 4}
        while engine.rows:
            engine.finish(32)
            await settle(engine)
        assert not any(one.rows_left for one in many)

    asyncio.run(ask())


def test_rows_of_a_small_request_go_to_the_engine_at_once() -> None:
    async def ask() -> None:
        engine = Engine()
        engine.feeding.begin(Request(engine, 5000))
        assert len(engine.rows) == AT_FIRST  # the event loop goes on in between
        await settle(engine)
        small = Request(engine, 3)
        engine.feeding.begin(small)
        assert len(small.running) == 3

    asyncio.run(ask())


def test_an_error_ends_its_request_alone() -> None:
    async def ask() -> None:
        engine = Engine()
        bad, good = Request(engine, 100, bad=50), Request(engine, 100)
        engine.feeding.begin(bad)
        engine.feeding.begin(good)
        await settle(engine)
        assert str(bad.error) == "refused"
        assert (good.rows_left, good.error) == (0, None)
        with pytest.raises(ValueError, match="refused"):
            engine.feeding.begin(Request(engine, 100, bad=100))

    asyncio.run(ask())
