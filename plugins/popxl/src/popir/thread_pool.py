"""Threads that share work with the thread that waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ThreadPool:
    """A number of threads, including the caller's."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "popir") if count > 1 else None

    def each(self, one: Callable[[T], object], items: Sequence[T]) -> None:
        """Call `one` with each item; raise the error of the first that failed."""
        if self._pool is None or len(items) < 2:
            for item in items:
                one(item)
            return
        errors: dict[int, BaseException] = {}
        # One iterator for all: taking its next item is one step of the interpreter.
        waiting = iter(list(enumerate(items)))

        def work() -> None:
            for number, item in waiting:
                try:
                    one(item)
                except Exception as error:
                    errors[number] = error

        helping = min(self.count, len(items)) - 1
        others = [self._pool.submit(work) for _ in range(helping)]
        try:
            work()
        finally:
            for other in others:
                other.result()
        if errors:
            raise errors[min(errors)]

    def close(self) -> None:
        """End the threads. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown()


#: Only the caller's thread.
ALONE = ThreadPool(1)
