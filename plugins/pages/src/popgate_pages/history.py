"""The last hour of the server, in memory: one point every ten seconds.

A point holds the differences of the counters since the point before, for the models
that had requests. The pages draw it; Prometheus keeps more.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from app.gateway import Gateway
from app.observe.metrics import MetricsRegistry, ModelMetrics

INTERVAL = 10.0
POINTS = 360
#: The most models of one point. Models with the fewest requests are left out.
MOST_MODELS = 100
_MS = 1e6


class Figures(NamedTuple):
    """Counters of one version of a model, or their increases."""

    answered: int = 0
    failed: int = 0
    rows: int = 0
    runs: int = 0
    total_ns: int = 0
    decode_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    encode_ns: int = 0

    @classmethod
    def of(cls, metrics: ModelMetrics) -> Figures:
        return cls(
            metrics.successes,
            metrics.failure_count,
            metrics.inference_count,
            metrics.exec_count,
            metrics.request.sum_ns,
            metrics.compute_input_ns,
            metrics.queue.sum_ns,
            metrics.compute.sum_ns,
            metrics.compute_output_ns,
        )

    def since(self, before: Figures) -> Figures:
        return Figures(*(max(0, a - b) for a, b in zip(self, before, strict=True)))

    def plus(self, other: Figures) -> Figures:
        return Figures(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Point:
    """The time at `at` (seconds since 1970), in the `seconds` before it.

    `models` are the differences by model, of all versions together. `pending` is the
    number of requests in flight at that time.
    """

    at: float
    seconds: float
    pending: int
    models: Mapping[str, Figures]

    def total(self, sees: Callable[[str], bool]) -> Figures:
        """Return the sum of the models that `sees` accepts."""
        total = Figures()
        for name, figures in self.models.items():
            if sees(name):
                total = total.plus(figures)
        return total

    def column(self, sees: Callable[[str], bool]) -> dict[str, float | None]:
        """Return the rates and means of this point, as the pages draw them."""
        sum_ = self.total(sees)

        def mean(ns: int) -> float | None:
            return round(ns / sum_.answered / _MS, 4) if sum_.answered else None

        known = sum_.decode_ns + sum_.queue_ns + sum_.compute_ns + sum_.encode_ns
        return {
            "rate": round(sum_.answered / self.seconds, 4),
            "failed": round(sum_.failed / self.seconds, 4),
            "batch": round(sum_.rows / sum_.runs, 4) if sum_.runs else None,
            "latency": mean(sum_.total_ns),
            "decode": mean(sum_.decode_ns),
            "queue": mean(sum_.queue_ns),
            "compute": mean(sum_.compute_ns),
            "wake": mean(max(0, sum_.total_ns - known)),
            "encode": mean(sum_.encode_ns),
        }


class History:
    """The points of the last hour. For one thread."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS)
        self._before: dict[tuple[str, str], Figures] = {}
        self._looked = time.monotonic()

    async def keep(self, gateway: Gateway) -> None:
        """Take a point every ten seconds, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            self.look(gateway.metrics)

    def look(self, metrics: MetricsRegistry) -> None:
        """Take a point."""
        now = time.monotonic()
        seconds, self._looked = max(now - self._looked, 1e-3), now
        seen: dict[tuple[str, str], Figures] = {}
        grown: dict[str, Figures] = {}
        pending = 0
        for one in metrics.models():
            key = (one.name, one.version)
            seen[key] = Figures.of(one)
            pending += one.pending
            since = seen[key].since(self._before.get(key, Figures()))
            if since.answered or since.failed:
                grown[one.name] = grown.get(one.name, Figures()).plus(since)
        self._before = seen
        if len(grown) > MOST_MODELS:
            busiest = heapq.nlargest(
                MOST_MODELS, grown, key=lambda n: grown[n].answered
            )
            grown = {name: grown[name] for name in busiest}
        self._points.append(Point(time.time(), seconds, pending, grown))

    def __iter__(self) -> Iterator[Point]:
        """Iterate over the points, the oldest first."""
        return iter(tuple(self._points))

    def __repr__(self) -> str:
        return f"<History of {len(self._points)} points>"
