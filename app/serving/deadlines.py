"""The deadlines of all requests of a gateway, however they arrived and wherever they
run.

One sweep checks the calls in flight. It fails the late ones. It starts to watch the
client of each call that has waited for a whole period. Deadlines that clients set are
kept to the millisecond, because a deadline before the next sweep has its own timer. The
device drops late requests before it runs them (`engine/worker/replica.py`) and ends
runs whose requests are all cancelled (`engine/worker/cancellation.py`). Nothing else in
the core enforces a deadline.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

# Seconds between two sweeps. Requests with faster answers cost nothing. A disconnect is
# noticed after one to two periods, if nothing reports it earlier.
SWEEP = 0.05


class Expiring(Protocol):
    """A call in flight. `deadline` is a `time.monotonic()` time."""

    deadline: float
    is_exact: bool

    def expire(self) -> None:
        """Fail the request because its deadline has passed."""

    def watch(self) -> None:
        """Start to watch whether the client stays connected."""


class Deadlines:
    """The calls in flight; belongs to one event loop at a time."""

    def __init__(self) -> None:
        #: The calls, and whether the last sweep saw them.
        self.calls: dict[Expiring, bool] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self.calls)

    def add(self, call: Expiring) -> None:
        """Watch the deadline of a call until it is removed from `calls`."""
        self.calls[call] = False
        loop = self._loop
        # Asking for the running loop takes a system call.
        if self._timer is None or loop is None or not loop.is_running():
            self._loop = loop = asyncio.get_running_loop()
            self._timer = loop.call_later(SWEEP, self._sweep, loop)
        if call.is_exact:
            self._keep_exactly(call, loop, time.monotonic())

    def _keep_exactly(
        self, call: Expiring, loop: asyncio.AbstractEventLoop, now: float
    ) -> None:
        left = call.deadline - now
        if left < SWEEP:
            loop.call_later(max(0.0, left), call.expire)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            return
        self._timer = None
        now = time.monotonic()
        for call, was_there in list(self.calls.items()):
            if now >= call.deadline:
                call.expire()
                continue
            if call.is_exact:
                self._keep_exactly(call, loop, now)
            if was_there:
                call.watch()
            else:
                self.calls[call] = True
        if self.calls:
            self._timer = loop.call_later(SWEEP, self._sweep, loop)

    def __repr__(self) -> str:
        return f"<Deadlines of {len(self)} calls>"
