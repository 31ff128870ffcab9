"""Threads for work that blocks.

Covers: app/pools.py.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from functools import partial

import pytest

from app.background import DaemonPool
from app.give_way import give_way
from engine.thread_priority import NICENESS

WAIT = 10.0


def test_results_and_errors_come_back() -> None:
    pool = DaemonPool(2, "test")
    assert pool.submit(lambda: 7).result(WAIT) == 7
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(WAIT)
    assert pool.submit(lambda: 8).result(WAIT) == 8

    async def ask() -> int:
        return await pool.run(lambda: 9)

    assert asyncio.run(ask()) == 9
    pool.close()


def test_calls_run_in_their_order() -> None:
    pool = DaemonPool(1, "test")
    gate, ended = threading.Event(), list[str]()
    jobs = [pool.submit(partial(gate.wait, WAIT))]
    for name, order in (("b", 1.0), ("c", 1.0), ("d", 2.0), ("a", 0.0)):
        jobs.append(pool.submit(partial(ended.append, name), order))  # type: ignore[arg-type]
    pool.close()  # runs them first
    gate.set()
    for job in jobs:
        job.result(WAIT)
    assert ended == ["a", "b", "c", "d"]


def test_a_long_call_lets_much_smaller_ones_run_first() -> None:
    pool = DaemonPool(1, "test", gives_way=True)
    has_begun, ended = threading.Event(), list[str]()
    now = time.monotonic()

    def large() -> None:
        has_begun.set()
        deadline = time.monotonic() + WAIT
        while "small" not in ended and time.monotonic() < deadline:
            give_way()
        ended.append("large")

    def small() -> None:
        give_way()  # neither the large one nor one that is almost as large begins
        ended.append("small")

    jobs = [pool.submit(large, now + 100)]
    assert has_begun.wait(WAIT)
    jobs += [
        pool.submit(partial(ended.append, "almost"), now + 90),
        pool.submit(small, now + 1),
    ]
    for job in jobs:
        job.result(WAIT)
    assert ended == ["small", "large", "almost"]
    pool.close()


def test_threads_that_give_way() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    pool, other = DaemonPool(1, "test", gives_way=True), DaemonPool(1, "test")
    mine = niceness()
    assert pool.submit(niceness).result(WAIT) == min(19, mine + NICENESS)
    assert other.submit(niceness).result(WAIT) == mine
    pool.close()
    other.close()


class Large:
    """What a call works on."""


def test_what_a_call_that_failed_worked_on_is_freed_at_once() -> None:
    pool = DaemonPool(1, "test")
    large: Large | None = Large()
    freed = weakref.ref(large)

    def fail(large: Large) -> None:
        raise ValueError(repr(large))

    async def ask(large: Large) -> None:
        with pytest.raises(ValueError, match="Large"):
            await pool.run(partial(fail, large))

    gc.collect()
    gc.disable()
    try:
        assert large
        asyncio.run(ask(large))
        large = None
        pool.submit(lambda: None).result(WAIT)
        assert freed() is None
    finally:
        gc.enable()
        pool.close()


def test_never_more_threads_than_asked_for() -> None:
    pool = DaemonPool(3, "test")
    gate, inside = threading.Event(), threading.Semaphore(0)

    def work() -> str:
        inside.release()
        assert gate.wait(WAIT)
        return threading.current_thread().name

    jobs = [pool.submit(work) for _ in range(10)]
    for _ in range(3):
        assert inside.acquire(timeout=WAIT)
    assert not inside.acquire(blocking=False)
    assert pool.is_busy
    gate.set()
    names = {job.result(WAIT) for job in jobs}
    assert names <= {"test-0", "test-1", "test-2"}
    pool.close()


def test_a_thread_that_cannot_be_started_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = DaemonPool(2, "test")
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.submit(lambda: 1).result(WAIT)
        assert not pool.is_busy
    gate = threading.Event()
    first = pool.submit(lambda: gate.wait(WAIT))
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        second = pool.submit(lambda: 2)  # waits for the thread that there is
    gate.set()
    assert first.result(WAIT)
    assert second.result(WAIT) == 2
    pool.close()


def test_an_idle_thread_is_used_again() -> None:
    pool = DaemonPool(8, "test")
    before = threading.active_count()
    for _ in range(20):
        pool.submit(lambda: None).result(WAIT)
    # A thread may not have said yet that it is idle again when the next work comes.
    assert threading.active_count() - before <= 8
    pool.close()


def test_closing_ends_the_threads() -> None:
    pool = DaemonPool(2, "test")
    done = pool.submit(lambda: threading.current_thread())
    pool.close()
    thread = done.result(WAIT)
    thread.join(WAIT)
    assert not pool.is_busy
    assert thread.daemon


def test_cancelled_work_is_not_done() -> None:
    pool = DaemonPool(1, "test")
    gate = threading.Event()
    pool.submit(lambda: gate.wait(WAIT))
    done: list[int] = []
    waiting = pool.submit(lambda: done.append(1))
    assert waiting.cancel()
    gate.set()
    pool.submit(lambda: None).result(WAIT)
    assert done == []
    pool.close()
