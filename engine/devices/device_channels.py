"""`DeviceChannels`: the channels of this process to the replicas on one device."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from engine.devices.request import Request, RequestChannel
from engine.errors import DeadlineExceeded, EngineError


class DeviceChannels:
    """The open channels, by the number that completions have. `lock` guards them."""

    __slots__ = ("_left_behind", "_lock", "by_number")

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.by_number: dict[int, RequestChannel] = {}
        #: Work to do for the channels of a lost process.
        self._left_behind: deque[Callable[[], None]] = deque()

    @property
    def all(self) -> list[RequestChannel]:
        return list(self.by_number.values())

    def add(self, number: int, channel: RequestChannel) -> None:
        with self._lock:
            self.by_number[number] = channel

    def remove(self, channel: RequestChannel) -> None:
        with self._lock:
            self.by_number.pop(channel.number, None)

    def request_of(self, number: int) -> Request | None:
        """Return the request of this process with this number, while it is
        in flight.
        """
        with self._lock:
            found = (c.request_of(number) for c in self.by_number.values())
            return next((request for request in found if request is not None), None)

    def expire(self, now: int) -> int:
        """Fail the requests whose deadline was before `now`. Return their number. The
        caller holds the lock.
        """
        count = 0
        for channel in self.by_number.values():
            for request in channel.waiting if channel.in_flight else ():
                if 0 < request.deadline_ns < now and not request.done:
                    request.abandon(DeadlineExceeded())
                    count += 1
        return count

    def lose(self, error: EngineError) -> None:
        """End the requests of all channels, and close the channels, because the process
        has ended. The caller holds the lock.

        Takes all steps, even if one of them raises.
        """
        with contextlib.ExitStack() as ends:
            for channel in self.by_number.values():
                ends.callback(channel.close)
                ends.callback(self._lose, channel, error)
            self.by_number.clear()

    def _lose(self, channel: RequestChannel, error: EngineError) -> None:
        after = channel.lose(error)
        if after is not None:
            self._left_behind.append(after)

    def hand_over(self) -> None:
        """Move requests that have not begun to another device, and take its lock.

        The caller does not hold the lock.
        """
        while self._left_behind:
            self._left_behind.popleft()()

    def __repr__(self) -> str:
        return f"<DeviceChannels {sorted(self.by_number)}>"
