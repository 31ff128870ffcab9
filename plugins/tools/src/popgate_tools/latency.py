"""Latency of requests in a few numbers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Measured:
    """Requests made one after another or in parallel.

    `seconds` is the time from the first to the last. `latencies` are seconds of each
    request, from the call until its result was ready.
    """

    seconds: float
    latencies: array[float]
    rows: int = 0
    """Rows of each request; 0 if requests have no rows."""
    calls: int = 0
    """Return the latencies of the user's callbacks, if there are any."""

    @property
    def count(self) -> int:
        return len(self.latencies)

    @property
    def requests_per_second(self) -> float:
        return self.count / self.seconds if self.seconds else 0.0

    @property
    def rows_per_second(self) -> float:
        return self.rows * self.requests_per_second

    @property
    def milliseconds(self) -> tuple[float, ...]:
        """Return p50, p90 and p99."""
        return tuple(1e3 * quantile(sorted(self.latencies), q) for q in QUANTILES)

    def lines(self) -> list[str]:
        """Return a readable summary."""
        rate = f"{_number(self.requests_per_second)} requests/s"
        if self.rows:
            rate += f", {_number(self.rows_per_second)} rows/s"
        ordered = sorted(self.latencies)
        shown = [f"p{q * 100:g} {1e3 * quantile(ordered, q):.3f} ms" for q in QUANTILES]
        if ordered:
            mean = 1e3 * sum(ordered) / len(ordered)
            shown += [f"mean {mean:.3f} ms", f"max {1e3 * ordered[-1]:.3f} ms"]
        return [f"throughput  {rate}", f"latency     {', '.join(shown)}"]


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Return the nearest-rank quantile of ordered values; 0 if there are none."""
    if not ordered:
        return 0.0
    rank = -int(-fraction * len(ordered) // 1)  # rounded up
    return ordered[min(len(ordered), max(1, rank)) - 1]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
