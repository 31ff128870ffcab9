"""Where the time of requests went, phase by phase (Model Runtime: tracepoints).

    read preparation   from the call until the request is in its queue
    read queue         in the queue, until the batch it runs in starts
    computation        until that batch has been computed
    request            the whole: from the call until its batch has been computed

How long a caller then takes to collect the result is no part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields

from engine.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class PhaseValues:
    """One number for each phase: microseconds, or a count."""

    request: float
    read_preparation: float
    read_queue: float
    computation: float

    def by_name(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


_NOTHING = PhaseValues(0.0, 0.0, 0.0, 0.0)


class _Point:
    """The times of one request, in nanoseconds."""

    __slots__ = ("computation", "preparation", "queue")

    def __init__(self) -> None:
        self.preparation = self.queue = self.computation = 0


class Tracepoints:
    """The times of the last `size` requests of one replica that succeeded; of all with
    `size` 0.

    Recorded by threads that hold `lock`, which readers take. Any thread may read.
    """

    __slots__ = ("_lock", "_next", "_points", "_size", "count")

    def __init__(self, size: int, lock: AbstractContextManager[object]) -> None:
        self.count = 0
        """How many requests have been recorded, also those that were dropped since."""
        self._lock = lock
        self._size = size
        self._points: list[_Point] = []
        self._next = 0

    def record(self, preparation: int, queue: int, computation: int) -> None:
        """The nanoseconds of the phases of one request; the caller holds the lock.

        This is all that requests pay for: three numbers are written over old ones.
        What they mean is worked out when somebody asks.
        """
        points, at = self._points, self._next
        if at == len(points):
            points.append(_Point())
        point = points[at]
        point.preparation = preparation
        point.queue = queue
        point.computation = computation
        self.count += 1
        at += 1
        self._next = at if at != self._size else 0

    def __len__(self) -> int:
        return len(self._points)

    def trace(self, position: int = -1) -> PhaseValues:
        """The times of one request: -1 is the last, 0 the oldest that is kept.

        Zeros where nothing was recorded yet; InvalidInput where there are not so many.
        """
        rows = self._rows()
        kept = len(rows)
        if position == -1 and not kept:
            return _NOTHING
        if not -kept <= position < kept:
            raise InvalidInput(
                f"there is no request number {position}: {kept} are recorded"
            )
        return PhaseValues(*[ns / 1e3 for ns in rows[position]])

    def percentile(self, quantile: float = 0.9) -> PhaseValues:
        """For each phase the time that the fraction `quantile` of the requests kept did
        not exceed (nearest rank, so always one that was measured); zeros without any.

        InvalidInput unless 0 <= quantile <= 1.
        """
        if not 0 <= quantile <= 1:
            raise InvalidInput(f"a quantile is between 0 and 1, got {quantile!r}")

        def rank(times: list[int]) -> float:
            position = max(0, math.ceil(quantile * len(times)) - 1)
            return sorted(times)[position] / 1e3

        return self._over_phases(rank)

    def mean(self) -> PhaseValues:
        """The mean of each phase over the requests kept; zeros without any."""
        return self._over_phases(lambda times: sum(times) / len(times) / 1e3)

    def counts(self) -> PhaseValues:
        """How many requests have been recorded: the same number for each phase."""
        return PhaseValues(*[float(self.count)] * 4)

    def _over_phases(self, of: Callable[[list[int]], float]) -> PhaseValues:
        rows = self._rows()
        if not rows:
            return _NOTHING
        return PhaseValues(*[of(list(phase)) for phase in zip(*rows, strict=True)])

    def _rows(self) -> list[tuple[int, int, int, int]]:
        """The whole and its phases, in nanoseconds, of each request, oldest first."""
        rows = []
        with self._lock:
            for point in self._points[self._next :] + self._points[: self._next]:
                preparation = max(0, point.preparation)
                queue, computation = point.queue, point.computation
                whole = preparation + queue + computation
                rows.append((whole, preparation, queue, computation))
        return rows

    def __repr__(self) -> str:
        return f"<Tracepoints {len(self)} of {self.count} requests>"
