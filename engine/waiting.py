"""Blocking callers of a device: one of them drives it, the others wait for that one."""

from __future__ import annotations

import select
import threading
import time
from typing import Protocol

from engine.request import Request

#: Seconds after which a waiting thread looks again whether it should drive.
_LOOK_AGAIN = 0.5


class Driven(Protocol):
    """What the driver needs of a device (engine/device.py says what it does)."""

    def fileno(self) -> int: ...
    def lost_fileno(self) -> int: ...
    def poll(self) -> int: ...
    def check(self) -> bool: ...
    def expire(self) -> int: ...
    def look_after(self) -> bool: ...
    @property
    def patience(self) -> float: ...


class BlockingDriver:
    """Drives a device for threads that block, where no event loop has adopted it.

    Of the threads that wait, the one that has the driver's lock watches the device's
    descriptors and calls `poll`, for all of them. Thread-safe.
    """

    def __init__(self, device: Driven) -> None:
        self.adopted = False
        self._device = device
        self._driver = threading.Lock()
        self._turn = threading.Condition()
        self._followers = 0
        self._heard = 0.0  # when there was an event, or a look, last

    def tell(self) -> None:
        """Something was resolved: the threads that wait should look."""
        # A follower counts itself before it looks at its request, so one that is not
        # seen here has yet to look.
        if self._followers:
            with self._turn:
                self._turn.notify_all()

    def wait(self, request: Request, timeout: float | None) -> bool:
        """Block until `request` is done, at most `timeout` seconds; whether it is."""
        end = None if timeout is None else time.monotonic() + timeout
        while not request.done:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            if not self.adopted and self._driver.acquire(blocking=False):
                try:
                    if not request.done:
                        self._drive(left, request)
                finally:
                    self._driver.release()
                    self.tell()
            else:
                self._follow(left, request)
        return True

    def _follow(self, left: float | None, request: Request) -> None:
        with self._turn:
            self._followers += 1
            try:
                if not request.done and (self.adopted or self._driver.locked()):
                    self._turn.wait(
                        _LOOK_AGAIN if left is None else min(left, _LOOK_AGAIN)
                    )
            finally:
                self._followers -= 1

    def _drive(self, left: float | None, request: Request) -> None:
        device = self._device
        poller = select.poll()
        poller.register(device.fileno(), select.POLLIN)
        lost = device.lost_fileno()
        if lost >= 0:
            poller.register(lost, select.POLLIN)
        limit = _LOOK_AGAIN if left is None else min(left, _LOOK_AGAIN)
        if request.deadline_ns:
            until = (request.deadline_ns - time.monotonic_ns()) / 1e9
            limit = max(0.0, min(limit, until))
        events = poller.poll(limit * 1000)
        device.poll()
        if any(fd == lost for fd, _ in events):
            device.check()
        if events:
            self._heard = time.monotonic()
            return
        device.expire()
        # Where there is an event loop it sees to that.
        if time.monotonic() - self._heard > device.patience / 2 > 0:
            device.look_after()
            self._heard = time.monotonic()

    def __repr__(self) -> str:
        who = "an event loop" if self.adopted else f"{self._followers} threads wait"
        return f"<BlockingDriver {who}>"
