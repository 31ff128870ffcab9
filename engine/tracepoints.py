"""Where the time of requests went, phase by phase (Model Runtime: tracepoints).

    read preparation   from the call until the request is in its queue
    read queue         in the queue, until the batch it runs in starts
    computation        until that batch has been computed
    request            the whole: from the call until its batch has been computed

How long a caller then takes to collect the result is no part of it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from engine.errors import InvalidInput

if TYPE_CHECKING:
    from engine.request import Request


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


class Tracepoints:
    """The times of the last `size` requests of one replica that succeeded; of all with
    `size` 0.

    Recorded by the thread that resolves a request, with the device's lock held, without
    a lock of its own; read by any thread.
    """

    __slots__ = ("_buffer", "append", "count")

    def __init__(self, size: int) -> None:
        # Recording is all that requests pay for, so nothing is made for it: requests
        # carry their times anyway, and are kept instead of thrown away. What the times
        # mean is worked out when somebody asks.
        self._buffer: deque[Request] = deque(maxlen=size or None)
        self.append: Callable[[Request], None] = self._buffer.append
        """Record a request; whoever does counts it, too."""
        self.count = 0
        """How many requests have been recorded, also those that were dropped since."""

    def __len__(self) -> int:
        return len(self._buffer)

    def trace(self, position: int = -1) -> PhaseValues:
        """The times of one request: -1 is the last, 0 the oldest that is kept.

        Zeros where nothing was recorded yet; InvalidInput where there are not so many.
        """
        kept = len(self._buffer)
        if position == -1 and not kept:
            return _NOTHING
        if not -kept <= position < kept:
            raise InvalidInput(
                f"there is no request number {position}: {kept} are recorded"
            )
        return PhaseValues(*(ns / 1e3 for ns in _phases_of(self._buffer[position])))

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
        # Others may append meanwhile: a copy in one step.
        rows = [_phases_of(one) for one in self._buffer.copy()]
        if not rows:
            return _NOTHING
        return PhaseValues(*(of(list(phase)) for phase in zip(*rows, strict=True)))

    def __repr__(self) -> str:
        return f"<Tracepoints {len(self)} of {self.count} requests>"


def _phases_of(request: Request) -> tuple[int, int, int, int]:
    """Nanoseconds of the whole request and of its phases."""
    preparation = max(0, request.submitted_ns - request.began_ns)
    queue, computation = request.queue_ns, request.compute_ns
    return preparation + queue + computation, preparation, queue, computation
