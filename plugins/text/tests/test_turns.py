"""Requests that tokenize in the same threads, one step after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import pytest

from popgate_text.turns import TOKENIZING_THREADS, at_once, in_turns

Steps = Generator[None, None, str]


def test_a_long_one_lets_others_in_between() -> None:
    """Those that never end by themselves are as many as there are threads."""
    is_over = threading.Event()

    def endless() -> Steps:
        while not is_over.is_set():
            yield
        return "over"

    def short() -> Steps:
        yield
        return "short"

    async def ask() -> None:
        many = [asyncio.ensure_future(in_turns(endless())) for _ in range(4)]
        assert len(many) > TOKENIZING_THREADS
        assert (await in_turns(short()))[0] == "short"
        assert not any(one.done() for one in many)
        is_over.set()
        assert [text for text, _ in await asyncio.gather(*many)] == ["over"] * 4

    asyncio.run(ask())


def test_one_that_is_cancelled_ends_with_its_turn() -> None:
    has_begun, has_ended = threading.Event(), threading.Event()

    def endless() -> Steps:
        try:
            while True:
                has_begun.set()
                yield
        finally:
            has_ended.set()

    async def ask() -> None:
        task = asyncio.ensure_future(in_turns(endless()))
        assert await asyncio.to_thread(has_begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        assert await asyncio.to_thread(has_ended.wait, 60)

    asyncio.run(ask())


def test_errors_and_times_are_those_of_the_steps() -> None:
    def fails() -> Steps:
        yield
        raise ValueError("no token")

    def ends() -> Steps:
        yield
        yield
        return "end"

    with pytest.raises(ValueError, match="no token"):
        at_once(fails())
    with pytest.raises(ValueError, match="no token"):
        asyncio.run(in_turns(fails()))
    text, took = at_once(ends())
    assert (text, took > 0) == ("end", True)
    text, took = asyncio.run(in_turns(ends()))
    assert (text, took > 0) == ("end", True)
