"""Requests that are with a device: woken when done, given up when late or unwanted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from app.serving.table import Submitted
from engine import Cancelled, DeadlineExceeded

# Seconds between two looks at the requests under way. Answers that come sooner cost
# nothing; a client that goes away is noticed after one to two of these.
SWEEP = 0.05


class Waiting:
    """One request that waits for its device."""

    __slots__ = (
        "deadline",
        "future",
        "is_client_gone",
        "receive",
        "submitted",
        "watcher",
    )

    def __init__(
        self, receive: Callable[[], Awaitable[MutableMapping[str, Any]]]
    ) -> None:
        self.receive = receive
        self.deadline = 0.0
        self.future: asyncio.Future[None] | None = None
        self.submitted: Submitted | None = None
        self.watcher: asyncio.Task[None] | None = None
        self.is_client_gone = False

    def wake(self, submitted: Submitted) -> None:
        """Called when the request is done, however it ended."""
        future = self.future
        if future is not None and not future.done():
            future.set_result(None)

    def expire(self) -> None:
        """Gives the request up because its deadline has passed."""
        if self.submitted is not None and not self.submitted.done:
            self.submitted.abandon(DeadlineExceeded())

    async def watch(self) -> None:
        """Gives the request up when the client disconnects."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.is_client_gone = True
        if self.submitted is not None and not self.submitted.done:
            self.submitted.abandon(Cancelled("the client has disconnected"))


class WaitingRequests:
    """All requests of a front that are with a device. Belongs to one event loop.

    One timer serves them all: it gives up what is late, and lets those that have
    waited for a whole period be watched for their client.
    """

    def __init__(self) -> None:
        self._requests: dict[Waiting, bool] = {}  # and whether it was seen before
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._requests)

    async def wait(
        self, waiting: Waiting, submitted: Submitted, *, exact: bool
    ) -> None:
        """Returns when `submitted` is done, which it is by its deadline.

        With `exact` the deadline has a timer of its own; otherwise it may pass by up
        to `SWEEP` seconds. If the waiting task is cancelled, so is the request.
        """
        loop = asyncio.get_running_loop()
        waiting.submitted = submitted
        waiting.future = loop.create_future()
        timer = None
        if exact:
            left = max(0.0, waiting.deadline - time.monotonic())
            timer = loop.call_later(left, waiting.expire)
        self._requests[waiting] = False
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._timer = loop.call_later(SWEEP, self._sweep)
        try:
            await waiting.future
        finally:
            del self._requests[waiting]
            if timer is not None:
                timer.cancel()
            if waiting.watcher is not None:
                waiting.watcher.cancel()
            if not submitted.done:
                submitted.abandon(Cancelled("the waiting task was cancelled"))

    def _sweep(self) -> None:
        self._timer = None
        now = time.monotonic()
        for waiting, seen in list(self._requests.items()):
            if now > waiting.deadline:
                waiting.expire()
            elif not seen:
                self._requests[waiting] = True
            elif waiting.watcher is None and self._loop is not None:
                waiting.watcher = self._loop.create_task(waiting.watch())
        if self._requests and self._loop is not None:
            self._timer = self._loop.call_later(SWEEP, self._sweep)

    def __repr__(self) -> str:
        return f"<WaitingRequests {len(self)}>"
