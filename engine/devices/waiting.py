"""Blocking callers of a device: one of them drives it, the others wait for that one."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Protocol

from engine.devices.request import Request
from engine.errors import DeviceBusy

#: Seconds after which a waiting thread looks again whether it should drive.
_LOOK_AGAIN = 0.5
#: A driver looks for results for so long before it sleeps, where cores allow,
SPIN_NS = 100_000
#: if the last one that it slept for was there within that time and that of waking,
WAKE_NS = 40_000
#: or one of the last few that it looked for.
SPIN_CREDIT = 4
#: If others run on its core for so long meanwhile, there is no core to spare, and it
#: sleeps at once for the next so many short waits.
TAKEN_NS = 20_000
REST = 64


class Driven(Protocol):
    """Interface of a device for its driver (device.py describes it)."""

    spin_us: int
    outstanding: int

    def fileno(self) -> int: ...
    def lost_fileno(self) -> int: ...
    def look(self, alone: bool) -> bool: ...
    def collect(self) -> int: ...
    def poll(self) -> int: ...
    def check(self) -> bool: ...
    def expire(self) -> int: ...
    def check_responsive(self) -> bool: ...
    @property
    def ping_timeout(self) -> float: ...


class BlockingDriver:
    """Drives a device for threads that block, if no event loop has adopted it.

    Among the waiting threads, the one with the driver's lock watches the device's
    descriptors and calls `poll` for all of them. Thread-safe.

    Waking a process takes longer than many requests. So if there is a core for both the
    device and the caller (`spin_us`, engine/devices/thread_plan.py), the driver polls
    for results for a moment before it sleeps, as long as that pays. Other threads of
    this process and other processes run meanwhile.
    """

    def __init__(self, device: Driven) -> None:
        self.adopted = False
        self._device = device
        self._driver = threading.Lock()
        self._driving = 0  # the thread that has it
        self._turn = threading.Condition()
        #: How many threads wait without driving: whether to `tell`.
        self.followers = 0
        self._heard = 0.0  # when there was an event, or a look, last
        self._poller: select.poll | None = None
        self._lost_fd = -1
        self._credit = 0

    def tell(self) -> None:
        """Notify waiting threads that a request was resolved."""
        # A follower counts itself before it looks at its request, so one that is not
        # seen here has yet to look.
        if self.followers:
            with self._turn:
                self._turn.notify_all()

    def wait(self, request: Request, timeout: float | None) -> bool:
        """Block until `request` is done, at most `timeout` seconds; return whether it
        is.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not request.done:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            if not self.adopted and self._driver.acquire(blocking=False):
                self._driving = threading.get_ident()
                try:
                    if not request.done:
                        self._drive(left, request)
                finally:
                    # Released before the followers are told: one of them drives next.
                    self._driving = 0
                    self._driver.release()
                    self.tell()
            elif self._driving == threading.get_ident():
                raise DeviceBusy(
                    "a callback of a request cannot wait for one of the same device: "
                    "this thread, which calls it, takes the results"
                )
            else:
                self._follow(left, request)
        return True

    def _follow(self, left: float | None, request: Request) -> None:
        with self._turn:
            # Counted before it looks at its request: see `tell`.
            self.followers += 1
            try:
                if not request.done and (self.adopted or self._driver.locked()):
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
            poller.register(device.fileno(), select.POLLIN)
            if lost >= 0:
                poller.register(lost, select.POLLIN)
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
        # An event loop, if there is one, does that.
        if time.monotonic() - self._heard > device.ping_timeout / 2 > 0:
            device.check_responsive()
            self._heard = time.monotonic()

    def _spin(self, poller: select.poll, request: Request, left: float | None) -> bool:
        """Look for results for a moment; returns whether there are any."""
        device = self._device
        alone = device.outstanding == 1
        longest = SPIN_NS if left is None else min(SPIN_NS, int(left * 1e9))
        now = time.monotonic_ns()
        end = now + longest
        while not device.look(alone):
            # The first lets other threads run, and sees what can only be read there;
            # the second other processes, the device's above all.
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
