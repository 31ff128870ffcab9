"""A few daemon threads for work that blocks: attaching devices, loading models.

`asyncio.to_thread` does not fit. Python joins its threads at exit, so a wait for a
device or a long compilation would delay the shutdown.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from app.give_way import local
from engine import lower_priority

T = TypeVar("T")


class DaemonPool:
    """Pool of at most `size` daemon threads, each started when there is work.

    Calls run in their order, a number; equal ones as they came. With `gives_way`,
    other threads have the processor before these, orders are times in seconds, and a
    call that calls `give_way` lets those run that have less than half its time left.
    """

    def __init__(self, size: int, name: str, *, gives_way: bool = False) -> None:
        self._size = size
        self._name = name
        self._gives_way = gives_way
        self._work: queue.PriorityQueue[_Work] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], T], order: float = 0.0) -> Future[T]:
        """Run `call` in a thread of the pool. From any thread; never blocks.

        The job fails with RuntimeError if no thread exists and none can be started.
        """
        job: Future[T] = Future()
        with self._lock:
            if not self._idle.acquire(blocking=False) and (
                len(self._threads) < self._size
            ):
                thread = threading.Thread(
                    target=self._run,
                    name=f"{self._name}-{len(self._threads)}",
                    daemon=True,
                )
                try:
                    thread.start()
                    self._threads.append(thread)
                except RuntimeError as error:  # other threads, if any, run the job
                    if not self._threads:
                        job.set_exception(error)
                        return job
        self._work.put((order, next(self._numbers), _Job(job, call)))
        return job

    async def run(self, call: Callable[[], T]) -> T:
        """Submit from a coroutine and wait."""
        return await asyncio.wrap_future(self.submit(call))

    def close(self) -> None:
        """End the threads after their present work, without waiting for them."""
        for _ in self._threads:
            self._work.put((math.inf, next(self._numbers), None))

    @property
    def is_busy(self) -> bool:
        """Return whether a thread of the pool is alive."""
        return any(thread.is_alive() for thread in self._threads)

    def __repr__(self) -> str:
        return f"<DaemonPool {self._name} {len(self._threads)}/{self._size}>"

    def _run(self) -> None:
        if self._gives_way:
            lower_priority()
            local.do_first = self._do_first
        while (work := self._work.get())[-1] is not None:
            self._do(*work)
            self._idle.release()

    def _do(self, order: float, number: int, job: _Job | None) -> None:
        before, local.order = getattr(local, "order", 0.0), order
        if job is not None:
            job.run()
        local.order = before

    def _do_first(self) -> None:
        """Run the next call if it has less than half the time of the present one."""
        now = time.monotonic()
        with self._work.mutex:
            waiting = self._work.queue
            if not waiting or waiting[0][0] - now >= (local.order - now) / 2:
                return
            work = heapq.heappop(waiting)
        self._do(*work)


class _Job:
    __slots__ = ("_call", "_future")

    def __init__(self, future: Future[Any], call: Callable[[], Any]) -> None:
        self._future = future
        self._call = call

    def run(self) -> None:
        future, call = self._future, self._call
        # The traceback of an error contains this frame. If the frame could reach the
        # future, the error and the future would refer to each other. Only the garbage
        # collector would then free them and the objects of the call, such as a replaced
        # model.
        del self._future, self._call
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as e:
            future.set_exception(e)
        else:
            future.set_result(result)
        finally:
            del future, call


#: The order of a call, its number, and the call; None ends a thread.
_Work: TypeAlias = tuple[float, int, _Job | None]
