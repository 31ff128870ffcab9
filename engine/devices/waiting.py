"""Blocking callers of a device. One of them drives it, and the others wait for the
driver.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Protocol

from engine.devices.request import Request
from engine.errors import DeviceBusy
from engine.fork_guard import ForkGuard

#: Seconds after which a waiting thread checks again whether it should drive.
_LOOK_AGAIN = 0.5
#: How long a driver polls for results before it sleeps, if cores are free for that.
SPIN_NS = 100_000
#: The driver polls if its last sleep was shorter than `SPIN_NS` plus this wake-up time.
WAKE_NS = 40_000
#: The driver stops polling after this many polls in a row without a result.
SPIN_CREDIT = 4
#: If other threads run on the driver's core for `TAKEN_NS` while it polls, no core is
#: free for polling. The driver then sleeps at once in the next `REST` short waits.
TAKEN_NS = 20_000
REST = 64


class Driven(Protocol):
    """Interface of a device for its driver (device.py describes it)."""

    fork_guard: ForkGuard
    spin_us: int
    outstanding: int

    def fileno(self) -> int: ...
    def lost_fileno(self) -> int: ...
    def look(self, alone: bool | None = None) -> bool: ...
    def collect(self) -> int: ...
    def poll(self) -> int: ...
    def check(self) -> bool: ...
    def expire(self) -> int: ...
    def check_responsive(self) -> bool: ...
    @property
    def ping_timeout(self) -> float: ...


class BlockingDriver:
    """Drives a device for threads that block, if no event loop has adopted it.

    The waiting thread that has the driver's place watches the device's descriptors, and
    calls `poll` for all waiting threads. Thread-safe.

    Waking a process takes longer than many requests. So the driver polls for results
    for a moment before it sleeps, as long as that pays. It does so only if there are
    cores for both the device and the caller (`spin_us`, engine/devices/thread_plan.py).
    Other threads of this process and other processes run meanwhile.
    """

    def __init__(self, device: Driven) -> None:
        self.adopted = False
        self._device = device
        #: The thread that drives, under one key. A lock would stay locked if a signal
        #: handler raised KeyboardInterrupt just after it was taken.
        self.driver: dict[str, int] = {}
        self._turn = threading.Condition()
        #: How many threads wait without driving. `notify` does nothing if none does.
        self.followers = 0
        self._heard = 0.0  # when the last event or check was
        self._poller: select.poll | None = None
        self._lost_fd = -1
        self._credit = 0

    def adopt(self) -> None:
        """Let an event loop drive from now on."""
        self.adopted = True

    def catch_up(self) -> None:
        """Resolve finished requests, if no event loop does."""
        if not self.adopted and self._device.look():
            self._device.collect()

    def notify(self) -> None:
        """Notify waiting threads that a request was resolved."""
        # A follower counts itself before it checks its request. So a follower that is
        # not counted here has still to check its request.
        if self.followers:
            with self._turn:
                self._turn.notify_all()

    @property
    def is_elsewhere(self) -> bool:
        """Return whether another thread drives. It sleeps until the device's descriptor
        is readable, and drains it.
        """
        return bool(self.driver) and self.driver != {"thread": threading.get_ident()}

    def wait(self, request: Request, timeout: float | None) -> bool:
        """Block until `request` is done, at most `timeout` seconds. Return whether it
        is done.
        """
        if self._device.fork_guard.left and not request.done:
            raise self._device.fork_guard.error("request")
        end = None
        if timeout is not None:
            end = time.monotonic() + max(0.0, min(timeout, 1e9))
        driver, me = self.driver, threading.get_ident()
        mine = {"thread": me}
        while not request.done:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            if driver == mine:
                raise DeviceBusy(
                    "a callback of a request cannot wait for another request of the "
                    "same device, because its thread reads the results"
                )
            try:
                if self.adopted or driver.setdefault("thread", me) != me:
                    self._follow(left, request)
                elif not request.done:
                    self._drive(left, request)
            finally:
                # Signal handlers run after calls only, so none prevents the `clear`.
                # Notify the followers after it, because one of them drives next.
                if driver == mine:
                    driver.clear()
                    self.notify()
        return True

    def _follow(self, left: float | None, request: Request) -> None:
        with self._turn:
            # Count this thread before it checks its request: see `notify`.
            self.followers += 1
            try:
                if not request.done and (self.adopted or self.driver):
                    self._turn.wait(
                        _LOOK_AGAIN if left is None else min(left, _LOOK_AGAIN)
                    )
            finally:
                self.followers -= 1

    def _drive(self, left: float | None, request: Request) -> None:
        device = self._device
        lost = device.lost_fileno()
        poller = self._poller
        if poller is None or lost != self._lost_fd:
            poller = self._poller = select.poll()
            for fd in device.fileno(), lost:
                if fd >= 0:  # not closed
                    poller.register(fd, select.POLLIN)
            self._lost_fd = lost
        if self._credit > 0 and self._spin(poller, request, left):
            device.collect()
            self._heard = time.monotonic()
            return
        device.look(False)
        limit = _LOOK_AGAIN if left is None else min(left, _LOOK_AGAIN)
        if request.deadline_ns:
            until = (request.deadline_ns - time.monotonic_ns()) / 1e9
            limit = max(0.0, min(limit, until))
        began = time.monotonic_ns()
        events = poller.poll(limit * 1000)
        device.poll()
        if device.spin_us and time.monotonic_ns() - began < SPIN_NS + WAKE_NS:
            self._credit = SPIN_CREDIT if self._credit >= 0 else self._credit + 1
        if any(fd == lost for fd, _ in events):
            device.check()
        if events:
            self._heard = time.monotonic()
            return
        device.expire()
        # Check that the process answers. If an event loop drives, the loop does this.
        if time.monotonic() - self._heard > device.ping_timeout / 2 > 0:
            device.check_responsive()
            self._heard = time.monotonic()

    def _spin(self, poller: select.poll, request: Request, left: float | None) -> bool:
        """Poll for results for a moment. Return whether there are any."""
        device = self._device
        alone = device.outstanding == 1
        longest = SPIN_NS if left is None else min(SPIN_NS, int(left * 1e9))
        now = time.monotonic_ns()
        end = now + longest
        while not device.look(alone):
            # `poll` lets other threads run, and notices results and a lost device.
            # `sched_yield` lets other processes run, above all the device's.
            if request.done or poller.poll(0):
                return False
            os.sched_yield()
            before, now = now, time.monotonic_ns()
            if now - before > TAKEN_NS:
                self._credit = -REST
                return device.look(False)
            if now >= end:
                self._credit -= 1
                return False
        self._credit = SPIN_CREDIT
        return True

    def __repr__(self) -> str:
        who = "an event loop" if self.adopted else f"{self.followers} threads wait"
        return f"<BlockingDriver {who}>"
