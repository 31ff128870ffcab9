"""Histograms of durations."""

from __future__ import annotations

from bisect import bisect_left

NS_PER_SECOND = 1_000_000_000

# Upper bounds in seconds, each about 2.3 times the one before. The first is below the
# cost of the smallest model's request. The last is the slowest answer that a client
# waits for.
LATENCY_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
BOUNDS_NS = tuple(round(bound * NS_PER_SECOND) for bound in LATENCY_BUCKETS)


class Histogram:
    """Counts of durations in fixed buckets. They become cumulative when they are
    written out.
    """

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, ns: int) -> None:
        """Count one duration. The hot path of ``ModelMetrics`` has this inlined."""
        self.counts[bisect_left(BOUNDS_NS, ns)] += 1
        self.sum_ns += ns

    def add(self, other: Histogram) -> None:
        """Add the durations of another one."""
        self.sum_ns += other.sum_ns
        for bucket, count in enumerate(other.counts):
            self.counts[bucket] += count

    def __repr__(self) -> str:
        return f"<Histogram count={self.count} sum={self.sum_ns / 1e9:.6f}s>"
