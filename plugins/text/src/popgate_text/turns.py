"""The threads that tokenize, and the turns of the requests in them.

A thread tokenizes a few strings of a request, and then those of the next. So a request
with many long strings does not hold up others, and one that has ended is left soon.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

#: Threads that tokenize, for all models of a process.
TOKENIZING_THREADS: Final = 2
#: Nanoseconds after which another request has its turn.
_TURN: Final = 10_000_000
_pool_lock = threading.Lock()
_pools: list[ThreadPoolExecutor] = []

T = TypeVar("T")


def _pool() -> ThreadPoolExecutor:
    with _pool_lock:
        if not _pools:
            _pools.append(ThreadPoolExecutor(TOKENIZING_THREADS, "popgate-tokenize"))
        return _pools[0]


async def in_turns(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Return the result of a generator, and the nanoseconds that it ran.

    It runs in a thread from one `yield` to the next. If the caller is cancelled, it
    ends with its present turn.
    """
    loop = asyncio.get_running_loop()
    total = 0
    while True:
        results, took = await loop.run_in_executor(_pool(), _run, steps, _TURN)
        total += took
        if results:
            return results[0], total


def at_once(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Return what `in_turns` returns, without a thread."""
    (result,), took = _run(steps, 1 << 62)
    return result, took


def _run(steps: Generator[None, None, T], most: int) -> tuple[list[T], int]:
    """Run some steps; return the result if they were the last, and nanoseconds."""
    began = time.monotonic_ns()
    try:
        while time.monotonic_ns() - began < most:
            next(steps)
    except StopIteration as ended:
        return [ended.value], time.monotonic_ns() - began
    return [], time.monotonic_ns() - began
