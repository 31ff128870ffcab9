"""`CommandQueue`: work that other threads pass to the thread that runs programs."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable


class CommandQueue:
    """Commands, which run between two batches. `wake_fd` is the eventfd that wakes the
    thread. It takes the commands out of `waiting`, with whether they may run beside a
    run of large requests (engine/worker/large_runs.py). Any thread may add one.
    """

    __slots__ = ("_wake_fd", "waiting")

    def __init__(self, wake_fd: int) -> None:
        self._wake_fd = wake_fd
        self.waiting: queue.SimpleQueue[tuple[Callable[[], object], bool]] = (
            queue.SimpleQueue()
        )

    def do(self, command: Callable[[], object], *, beside: bool = False) -> None:
        """Run `command` later. Do not wait for it."""
        self.waiting.put((command, beside))
        os.eventfd_write(self._wake_fd, 1)

    def call(self, command: Callable[[], None]) -> None:
        """Run `command`, and wait until it is done. Raises its error."""
        done = threading.Event()
        errors: list[Exception] = []

        def wrapped() -> None:
            try:
                command()
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        self.do(wrapped)
        done.wait()
        if errors:
            raise errors[0]

    def __repr__(self) -> str:
        return f"<CommandQueue of {self.waiting.qsize()} commands>"
