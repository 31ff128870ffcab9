"""`InFlight`: the requests of a channel between `submit` and their end."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from time import monotonic_ns

from engine.devices.linked_device import LinkedDevice
from engine.devices.request import Request
from engine.errors import DeadlineExceeded, EngineError
from engine.runner.admission import Admission
from engine.runner.channel_rings import RequestWriter, ResultReader
from engine.runner.failover import Failover


class InFlight:
    """The requests in flight on a channel, and the ways in which they end without a
    result.

    `requests` are the requests by number, oldest first. The device and `admission`
    count them too. `failover` knows the requests that may move to another replica; None
    if none may. The lock of the device guards all of it. The methods take the lock.
    """

    __slots__ = (
        "_admission",
        "_device",
        "_failover",
        "_reader",
        "_replica",
        "_writer",
        "is_open",
        "requests",
    )

    def __init__(
        self,
        device: LinkedDevice,
        replica: int,
        writer: RequestWriter,
        reader: ResultReader,
        admission: Admission,
        failover: Failover | None,
    ) -> None:
        self._device = device
        self._replica = replica
        self._writer = writer
        self._reader = reader
        self._admission = admission
        self._failover = failover
        self.requests: dict[int, Request] = {}
        #: Whether the rings are mapped.
        self.is_open = True

    @property
    def awaiting(self) -> int:
        """Return the number of requests that no run has taken yet."""
        with self._device.lock:
            return self._writer.count_awaiting(self.placed()) if self.is_open else 0

    @property
    def started(self) -> list[Request]:
        """Return the requests that a run has taken, oldest first."""
        with self._device.lock:
            if not self.is_open:
                return []
            placed = self.placed()
            waiting = {id(request) for request in self._writer.untaken(placed)}
            return [request for request in placed if id(request) not in waiting]

    def placed(self) -> list[Request]:
        """Return the requests that are in the rings, oldest first."""
        return [r for r in self.requests.values() if r.slot >= 0]

    def until(self, number: int) -> list[Request]:
        """Return the requests in the rings, oldest first, up to this one. Return none
        if it is no longer in flight.
        """
        if number not in self.requests:
            return []
        return [r for n, r in self.requests.items() if n <= number and r.slot >= 0]

    def wait_for_room(self, most: int, end: float | None) -> None:
        """Block while `most` requests are in flight. Raises DeadlineExceeded at `end`
        (`time.monotonic()`).

        Copies finished large results out first, while they are in a cache. Then their
        slots are free for the next requests and still in the cache.
        """
        if self._reader.has_large_outputs:
            self._device.blocking.catch_up()
        while len(self.requests) >= most:
            with self._device.lock:
                oldest = next((r for r in self.requests.values() if not r.done), None)
            left = None if end is None else end - time.monotonic()
            if oldest is None:  # all are cancelled; the device has not said so yet
                self._device.blocking.catch_up()
                time.sleep(0.001)
                is_late = left is not None and left <= 0
            else:
                is_late = not oldest.wait(left)
            if is_late:
                raise DeadlineExceeded(
                    f"the queue was full until the timeout: {most} requests are in "
                    "flight"
                )

    def fail(self, request: Request, error: EngineError) -> None:
        """Resolve a request with an error."""
        self._admission.rows -= request.rows or 1
        request.resolve(error)

    def drop(self, request: Request, error: EngineError | None) -> None:
        """Remove a request that never reached the rings; an `error` resolves it."""
        del self.requests[request.number]
        self.keep_here(request)
        self._device.outstanding -= 1
        if error is not None:
            self.fail(request, error)

    def put_back(self, request: Request) -> None:
        """Count a request as the oldest in flight again."""
        self.requests = {request.number: request, **self.requests}
        self._device.outstanding += 1

    def abandon(self, request: Request, error: EngineError) -> None:
        """Resolve a request now. The device drops it, or its result is discarded."""
        try:
            if self.is_open and self._writer.owns(request):
                # Set the flag before the wake-up, so that the device finds it.
                self._writer.channel.set_cancelled(request.slot)
                self._device.notify_cancelled()
            if request.predicted_ns and isinstance(error, DeadlineExceeded):
                self._admission.service_time.learn(met=False)
            self._measure(request)
        finally:
            if self._writer.forget(request):
                self.drop(request, None)
            self.fail(request, error)

    def give_up(self, requests: list[Request], error: EngineError) -> None:
        """End requests whose run will not be filled up. The device forgets them."""
        with self._device.lock:
            if not self.is_open:
                return
            for request in requests:
                if self._writer.owns(request):
                    self._writer.channel.set_cancelled(request.slot, leaves=True)
                if not request.done:
                    self.fail(request, error)
            self._device.notify_cancelled()

    def _measure(self, request: Request) -> None:
        """Set the queue time and running time of a request that ends without a
        completion.
        """
        if not self.is_open or not self._writer.owns(request):
            return
        now = began = monotonic_ns()
        submitted = request.submitted_ns
        if self._writer.channel.requests.is_taken(request.slot):
            began = self._device.report.since(self._replica) or now
        request.queue_ns = max(0, began - submitted)
        request.compute_ns = max(0, now - max(began, submitted))

    def keep_here(self, request: Request) -> None:
        """Bind a request to this replica."""
        if self._failover is not None:
            with self._device.lock:
                self._failover.kept.pop(request.number, None)

    def lose(self, error: EngineError) -> Callable[[], None] | None:
        """Fail the requests that runs have taken. If an event loop drives, return a
        function that moves the other requests to another replica.
        """
        failover = self._failover
        if failover is None or not self._device.blocking.adopted or not self.is_open:
            self.fail_all(error)
            return None
        untaken = self._writer.untaken(self.placed())
        moving = failover.unstarted(self.requests, untaken)
        for request, _ in moving:
            del self.requests[request.number]
            self._device.outstanding -= 1
            self._admission.rows -= request.rows or 1
        self.fail_all(error)
        return partial(failover.hand_over, moving, error)

    def fail_all(self, error: EngineError) -> None:
        """Fail all requests: the device is lost, or the channel closes."""
        with self._device.lock:
            self._writer.stop()
            self._reader.stop()
            requests = list(self.requests.values())
            try:
                for request in requests:
                    self._measure(request)
                self._cancel(requests)
            finally:
                # Set all counts first, because `resolve` calls back and a callback may
                # submit.
                self._device.outstanding -= len(requests)
                self.requests.clear()
                if self._failover is not None:
                    self._failover.kept.clear()
                self._writer.backlog.clear()
                self._admission.rows = 0
                for request in requests:
                    request.resolve(error)

    def _cancel(self, requests: list[Request]) -> None:
        """Tell the device to drop requests, or to end their run."""
        with_device = [r for r in requests if r.slot >= 0 and not r.done]
        if not self.is_open or not with_device:
            return
        for request in with_device:
            self._writer.channel.set_cancelled(request.slot)
        self._device.notify_cancelled()

    def close(self, error: EngineError) -> None:
        """Fail all requests and release the memory of the rings."""
        # If the device is lost, the requests have already failed.
        self.fail_all(error)
        with self._device.lock:
            if self.is_open:
                self.is_open = False
                self._writer.channel.close()

    def __repr__(self) -> str:
        return f"<InFlight, {len(self.requests)} requests>"
