"""`ReplicaLines`: the channels to one replica, each a line of requests.

There is one line for each priority level of the model, and one more for every weight
and lane in use. They share the estimate of the replica's service time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from threading import Thread

from engine.config import weighted_with
from engine.devices.linked_device import LinkedDevice
from engine.errors import EngineError
from engine.runner.admission import Admission
from engine.runner.failover import Reroute
from engine.runner.replica_channel import Flush, ReplicaChannel
from engine.runner.runner_description import RunnerDescription
from engine.runner.service_time import ServiceTime
from engine.runner.tracepoints import Tracepoints

logger = logging.getLogger(__name__)


class ReplicaLines:
    """The channels to replica `number` of a device. Thread-safe.

    `default` is the line of requests that state no level. It is the only line if the
    model has no levels. `all` are all lines, the levels first. Opening them blocks, and
    raises the errors of `LinkedDevice.call`. The other parameters are those of
    `ReplicaChannel`.
    """

    def __init__(
        self,
        description: RunnerDescription,
        device: LinkedDevice,
        number: int,
        reroute: Reroute | None = None,
        flusher: Flush | None = None,
        tracepoints: Tracepoints | None = None,
    ) -> None:
        self._description = description
        self._device = device
        self.number = number
        self._reroute, self._flusher, self._tracepoints = reroute, flusher, tracepoints
        self._service_time = ServiceTime(
            description.batches.depth, measured=description.measured
        )
        #: The lines' rows. Empty while there is one line for all requests.
        self._admissions: list[Admission] = []
        self._weighted: dict[tuple[int, int, int], ReplicaChannel] = {}
        count = description.priority_levels
        self._levels = tuple(self._open(level + 1) for level in range(count))
        if self._levels:
            self.default = self._levels[description.default_level - 1]
            self.all = self._levels
            self._admissions += [line.admission for line in self._levels]
        else:
            self.default = self._open(0)
            self.all = (self.default,)

    def _open(self, priority: int, weight: int = 0, lane: int = 0) -> ReplicaChannel:
        return ReplicaChannel(
            self._device,
            self.number,
            self._description,
            self._service_time,
            self._admissions,
            priority,
            weight,
            lane,
            self._reroute,
            self._flusher,
            self._tracepoints,
        )

    def of(self, priority: int) -> ReplicaChannel:
        """Return the channel for requests with this priority (`ModelRunner.submit`)."""
        if priority >= 0:
            known = 0 < priority <= len(self._levels)
            return self._levels[priority - 1] if known else self.default
        level, weight, lane = weighted_with(priority)
        beside = self.of(level)
        key = beside.priority, weight, lane
        found = self._weighted.get(key)
        if found is None:
            # Opening a channel waits for the present run. Until it is open, the
            # requests use the line of their level.
            self._weighted[key] = found = beside
            name = f"popgate-weight-{weight}-{lane}"
            Thread(target=self._add, args=key, name=name, daemon=True).start()
        return found

    def _add(self, priority: int, weight: int, lane: int) -> None:
        """Open the channel of a weight, in a thread."""
        try:
            line = self._open(priority, weight, lane)
        except (EngineError, OSError) as error:  # the device is probably lost
            if self.default.usable:
                what = "%r: cannot open a queue for requests of weight %d: %s"
                logger.warning(what, self, weight, error)
            return
        with self._device.lock:
            usable = self.default.usable
            if usable:
                self.all = (*self.all, line)
                self._admissions[:] = [each.admission for each in self.all]
                self._weighted[priority, weight, lane] = line
        if usable:
            logger.debug("%r is a line of weight %d", line, weight)
        else:
            self._device.close_channel(line)

    @property
    def in_flight(self) -> int:
        """Return the number of requests in flight on all lines."""
        return sum(line.in_flight for line in self.all)

    def __repr__(self) -> str:
        return f"<ReplicaLines {len(self.all)}, {self.default!r}>"


def least_busy(replicas: Iterable[ReplicaLines | None]) -> ReplicaLines | None:
    """Return the replica with the fewest requests of this process, among the replicas
    that can take one. Of several such replicas, prefer one whose device is idle for all
    processes. Return None if no replica can take a request.
    """
    ready = [lines for lines in replicas if lines is not None and lines.default.usable]
    return min(ready, key=_busy) if ready else None


def drain(channels: Iterable[ReplicaChannel], timeout: float) -> bool:
    """Wait until nothing is in flight on the channels, at most `timeout` seconds.
    Return whether nothing is.
    """
    end = time.monotonic() + timeout
    for channel in channels:
        for request in channel.waiting:
            if not request.wait(max(0.0, end - time.monotonic())):
                return False
    return True


def _busy(lines: ReplicaLines) -> tuple[int, bool]:
    return lines.in_flight, lines.default.device.report.is_occupied
