"""Times of requests, phase by phase (Model Runtime: tracepoints).

    read preparation   from the call until the request is in its queue
    read queue         in the queue, until the batch it runs in starts
    computation        until that batch has been computed
    request            the whole: from the call until its batch has been computed

The time that a caller then takes to collect the result is not included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING

from engine.errors import InvalidInput
from engine.fork_guard import fork_guard

if TYPE_CHECKING:
    from engine.devices.request import Request


@dataclass(frozen=True, slots=True)
class PhaseValues:
    """One number for each phase: microseconds or a count."""

    request: float
    read_preparation: float
    read_queue: float
    computation: float

    def __reduce__(self) -> tuple[object, ...]:  # compiled, frozen ones have none
        return PhaseValues, tuple(self.by_name().values())

    def by_name(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


_NOTHING = PhaseValues(0.0, 0.0, 0.0, 0.0)


#: This many points are made at a time. Neighbours in memory are more often in a cache
#: than points between the objects of other requests.
_AT_ONCE = 1024


class _Point:
    """The times of one request, in nanoseconds. `following` is the point of the next
    request.
    """

    __slots__ = ("computation", "following", "number", "preparation", "queue")

    def __init__(self, number: int) -> None:
        self.preparation = self.queue = self.computation = 0
        self.number = number
        self.following: _Point | None = None


class Tracepoints:
    """The times of the last `size` successful requests of one replica, or of all with
    `size` 0.

    A thread must hold `lock` to record. Readers take it too. Any thread may read.
    """

    __slots__ = ("_fork_guard", "_lock", "_point", "_points", "_rounds", "_size")

    def __init__(self, size: int, lock: AbstractContextManager[object]) -> None:
        self._fork_guard = fork_guard()
        self._lock = lock
        self._size = size
        self._rounds = 0
        self._points: list[_Point] = []
        self._point = self._more_points()

    def record(self, request: Request) -> None:
        """Record the times of a request that has succeeded. The caller holds the lock.

        This overwrites three old numbers and does nothing else for a request. Results
        are computed when they are read.
        """
        point = self._point
        point.preparation = request.submitted_ns - request.began_ns
        point.queue = request.queue_ns
        point.computation = request.compute_ns
        self._point = point.following or self._turn_over()

    def _turn_over(self) -> _Point:
        """Return the point after the last one: the oldest, or a new one."""
        if len(self._points) != self._size:
            return self._more_points()
        self._rounds += 1
        return self._points[0]

    def _more_points(self) -> _Point:
        """Add points, as far as `size` allows. Return the first of them."""
        first = len(self._points)
        end = first + _AT_ONCE
        if self._size:
            end = min(end, self._size)
        points = [_Point(number) for number in range(first, end)]
        for point, following in pairwise(points):
            point.following = following
        self._points += points
        return points[0]

    @property
    def count(self) -> int:
        """Return how many requests have been recorded, dropped ones included."""
        self._fork_guard.check("Tracepoints")
        with self._lock:
            return self._rounds * self._size + self._point.number

    def __len__(self) -> int:
        return min(self.count, self._size) if self._size else self.count

    def trace(self, position: int = -1) -> PhaseValues:
        """Return the times of one request. -1 is the last request, and 0 is the oldest
        one kept.

        Returns zeros before the first record. Raises InvalidInput if there are fewer
        requests.
        """
        rows = self._rows()
        kept = len(rows)
        if position == -1 and not kept:
            return _NOTHING
        if not -kept <= position < kept:
            raise InvalidInput(
                f"there is no request number {position}; {kept} requests are recorded"
            )
        return PhaseValues(*[ns / 1e3 for ns in rows[position]])

    def percentile(self, quantile: float = 0.9) -> PhaseValues:
        """Return, for each phase, the time that the fraction `quantile` of the kept
        requests did not exceed. It is always a measured time (nearest rank). Zeros if
        no request is kept.

        Raises InvalidInput unless 0 <= quantile <= 1.
        """
        if not 0 <= quantile <= 1:
            raise InvalidInput(f"a quantile must be between 0 and 1, got {quantile!r}")

        def rank(times: list[int]) -> float:
            position = max(0, math.ceil(quantile * len(times)) - 1)
            return sorted(times)[position] / 1e3

        return self._over_phases(rank)

    def mean(self) -> PhaseValues:
        """Return the mean of each phase over the kept requests, or zeros."""
        return self._over_phases(lambda times: sum(times) / len(times) / 1e3)

    def counts(self) -> PhaseValues:
        """Return how many requests have been recorded, which is the same for each
        phase.
        """
        return PhaseValues(*[float(self.count)] * 4)

    def _over_phases(self, of: Callable[[list[int]], float]) -> PhaseValues:
        rows = self._rows()
        if not rows:
            return _NOTHING
        return PhaseValues(*[of(list(phase)) for phase in zip(*rows, strict=True)])

    def _rows(self) -> list[tuple[int, int, int, int]]:
        """Return the total time and the phases of each request in nanoseconds, oldest
        first.
        """
        self._fork_guard.check("Tracepoints")
        rows = []
        with self._lock:
            points = self._points[: self._point.number]
            if self._rounds:
                points = self._points[self._point.number :] + points
            for point in points:
                preparation = max(0, point.preparation)
                queue, computation = point.queue, point.computation
                whole = preparation + queue + computation
                rows.append((whole, preparation, queue, computation))
        return rows

    def __repr__(self) -> str:
        if self._fork_guard.left:
            return f"<Tracepoints of process {self._fork_guard.pid}>"
        return f"<Tracepoints {len(self)} of {self.count} requests>"
