"""A device waits for less than a millisecond if a model asks for it.

Covers: engine/worker/connections.py.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from engine.worker import scheduler
from tests.plain import plain

WAIT_NS = 100_000


def shortest(wait: Callable[[], object]) -> int:
    """Return the nanoseconds of the shortest of many waits."""
    times = []
    for _ in range(50):
        began = time.monotonic_ns()
        assert not wait()
        times.append(time.monotonic_ns() - began)
    return min(times)


def test_a_wait_is_not_rounded_to_milliseconds() -> None:
    module = plain("engine.worker.scheduler")
    waiting = module.Scheduler()
    poller = select.poll()
    poller.register(waiting.wake_fd, select.POLLIN)
    rounded = shortest(lambda: poller.poll(WAIT_NS / 1e6))
    precise = shortest(lambda: waiting._wait(WAIT_NS))
    assert WAIT_NS <= precise < rounded
    # A descriptor that `select` cannot take is waited for all the same.
    opened = waiting.wake_fd
    os.dup2(opened, scheduler.SELECT_SIZE)
    waiting.wake_fd = scheduler.SELECT_SIZE
    assert not waiting._wait(WAIT_NS)
    os.close(scheduler.SELECT_SIZE)
    os.close(opened)


def test_news_end_a_wait() -> None:
    module = plain("engine.worker.scheduler")
    waiting = module.Scheduler()
    os.eventfd_write(waiting.wake_fd, 1)
    assert waiting._wait(60_000_000_000)
    os.close(waiting.wake_fd)
