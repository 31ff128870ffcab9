"""Counters of every model; app/observe/exposition.py writes them out.

Counting and reading happen on the event loop's thread only, so nothing here takes a
lock. Everything is cumulative and never goes down, except the gauges.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable

from app.errors import FailureReason, Outcome, Row
from app.observe.answers import Answers, Labels
from app.observe.histogram import BOUNDS_NS, Histogram
from app.observe.token_metrics import TokenCounts, TokenMetrics

# The most batch sizes that are counted separately for a model. Few models have over a
# hundred.
MAX_BATCH_SIZES = 4096


class BatchMetrics:
    """The numbers of the batches of one size. Durations are nanoseconds.

    Every request adds its share of its batch (rows / batch rows). So the sum is the
    number of batches, without data from the device.
    """

    __slots__ = ("compute_ns", "input_ns", "output_ns", "share")

    def __init__(self) -> None:
        self.share = 0.0
        self.compute_ns = 0.0
        self.input_ns = 0
        self.output_ns = 0

    def statistics(self, rows: int) -> dict[str, object]:
        """Return an entry of ``batch_stats`` in the protocol's statistics extension."""
        count = int(self.share + 0.5)
        return {
            "batch_size": rows,
            "compute_input": {"count": count, "ns": self.input_ns},
            "compute_infer": {"count": count, "ns": int(self.compute_ns)},
            "compute_output": {"count": count, "ns": self.output_ns},
        }

    def __repr__(self) -> str:
        return f"<BatchMetrics {self.share:.2f} batches>"


class ModelMetrics:
    """The numbers of one version of one model.

    They outlive a reload of the version, so they never go down while the process lives.
    ``pending`` is the number of accepted requests without an answer. Draining waits
    until it is 0. ``awaiting`` is the number of requests in other processes that no
    execution has taken yet.
    """

    __slots__ = (
        "awaiting",
        "batches",
        "compute",
        "failed",
        "failure_ns",
        "failures",
        "inference_count",
        "last_inference",
        "name",
        "pending",
        "queue",
        "request",
        "successes",
        "tokens",
        "version",
    )

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.reset()

    def reset(self) -> None:
        """Reset all counters."""
        self.pending = 0
        self.awaiting = 0
        self.successes = 0
        self.failures = dict.fromkeys(FailureReason, 0)
        self.failed = {outcome: Histogram() for outcome in Outcome}
        self.failure_ns = 0
        self.inference_count = 0
        self.batches: dict[int, BatchMetrics] = {}
        self.request = Histogram()
        self.queue = Histogram()
        self.compute = Histogram()
        self.tokens = TokenMetrics()
        self.last_inference = 0.0

    @property
    def exec_count(self) -> int:
        """Return the executions of the model: a batch of several requests
        counts once.
        """
        return int(sum(batch.share for batch in self.batches.values()) + 0.5)

    @property
    def compute_input_ns(self) -> int:
        """Return the time of decoding and validating all requests."""
        return sum(batch.input_ns for batch in self.batches.values())

    @property
    def compute_output_ns(self) -> int:
        """Return the time of encoding all answers."""
        return sum(batch.output_ns for batch in self.batches.values())

    @property
    def busy_ns(self) -> float:
        """Return how long devices have run the model: a batch of several requests
        counts once.
        """
        return sum(batch.compute_ns for batch in self.batches.values())

    @property
    def failure_count(self) -> int:
        return sum(self.failures.values())

    def add(self, other: ModelMetrics) -> None:
        """Add the counts of another process for the same version."""
        self.pending += other.pending
        self.awaiting += other.awaiting
        self.successes += other.successes
        self.inference_count += other.inference_count
        self.failure_ns += other.failure_ns
        self.last_inference = max(self.last_inference, other.last_inference)
        for reason, count in other.failures.items():
            self.failures[reason] += count
        for mine, theirs in (
            (self.request, other.request),
            (self.queue, other.queue),
            (self.compute, other.compute),
            *((self.failed[outcome], other.failed[outcome]) for outcome in Outcome),
        ):
            mine.add(theirs)
        self.tokens.add(other.tokens)
        for rows, batch in other.batches.items():
            sum_of = self.batches.get(rows) or self._batch(rows)
            sum_of.share += batch.share
            sum_of.compute_ns += batch.compute_ns
            sum_of.input_ns += batch.input_ns
            sum_of.output_ns += batch.output_ns

    def begin(self) -> None:
        """Count one more request in flight; ``success`` or ``failure`` ends it."""
        self.pending += 1

    def success(
        self,
        total_ns: int,
        queue_ns: int = 0,
        compute_ns: int = 0,
        *,
        rows: int = 1,
        batch_rows: int = 1,
        input_ns: int = 0,
        output_ns: int = 0,
        runs: float = 0.0,
    ) -> None:
        """End a request that was answered. Costs well under a microsecond.

        ``total_ns`` is the time from the complete body to the complete answer.
        ``input_ns`` is the time of decoding and validating, ``output_ns`` of encoding.
        ``rows`` is the number of inferences in the request (1 for a model that is not
        batched). ``runs`` is the request's share of batches if its rows ran in
        several, and ``compute_ns`` is then the sum over its rows.
        """
        self.pending -= 1
        self.successes += 1
        self.inference_count += rows
        if runs:
            share, each_ns = runs, compute_ns / rows
        else:
            share = rows / batch_rows if batch_rows > rows else 1.0
            each_ns = float(compute_ns)
        batch = self.batches.get(batch_rows)
        if batch is None:
            batch = self._batch(batch_rows)
        batch.share += share
        batch.compute_ns += share * each_ns
        batch.input_ns += input_ns
        batch.output_ns += output_ns
        # `Histogram.observe` three times, inlined.
        histogram = self.request
        histogram.counts[bisect_left(BOUNDS_NS, total_ns)] += 1
        histogram.sum_ns += total_ns
        histogram = self.queue
        histogram.counts[bisect_left(BOUNDS_NS, queue_ns)] += 1
        histogram.sum_ns += queue_ns
        histogram = self.compute
        histogram.counts[bisect_left(BOUNDS_NS, compute_ns)] += 1
        histogram.sum_ns += compute_ns
        self.last_inference = time.time()

    def count_tokens(self, counts: TokenCounts) -> None:
        """Count the tokens of a request that was answered."""
        self.tokens.count(counts)

    def _batch(self, rows: int) -> BatchMetrics:
        """Return the numbers of a new size; sizes beyond the limit share one entry."""
        if len(self.batches) >= MAX_BATCH_SIZES:
            rows = max(self.batches)
        return self.batches.setdefault(rows, BatchMetrics())

    def failure(self, row: Row, total_ns: int = 0) -> None:
        """End a request that was answered with an error, or whose client has
        disconnected.
        """
        self.pending -= 1
        self.failures[row.reason] += 1
        self.failure_ns += total_ns
        self.failed[row.outcome].observe(total_ns)

    def statistics(self) -> dict[str, object]:
        """Return the document of the protocol's statistics extension for
        this version.
        """
        count = self.successes

        def duration(ns: int, times: int = count) -> dict[str, int]:
            return {"count": times, "ns": ns}

        nothing = {"count": 0, "ns": 0}
        return {
            "name": self.name,
            "version": self.version,
            "last_inference": int(self.last_inference * 1000),
            "inference_count": self.inference_count,
            "execution_count": self.exec_count,
            "inference_stats": {
                "success": duration(self.request.sum_ns),
                "fail": duration(self.failure_ns, self.failure_count),
                "queue": duration(self.queue.sum_ns),
                "compute_input": duration(self.compute_input_ns),
                "compute_infer": duration(self.compute.sum_ns),
                "compute_output": duration(self.compute_output_ns),
                "cache_hit": nothing,
                "cache_miss": nothing,
            },
            "response_stats": {},
            "batch_stats": [
                batch.statistics(rows) for rows, batch in sorted(self.batches.items())
            ],
            "memory_usage": [],
            "token_stats": self.tokens.statistics(),
        }

    def __repr__(self) -> str:
        return (
            f"<ModelMetrics {self.name}/{self.version} successes={self.successes} "
            f"failures={self.failure_count} pending={self.pending}>"
        )


class MetricsRegistry:
    """The metrics of every version of a model that this server has served.

    `elsewhere` returns the counts of other processes for a version.
    """

    def __init__(
        self,
        elsewhere: Callable[[str, str], Iterable[ModelMetrics]] = lambda *key: (),
        *,
        keyless: str = "",
        answered: Callable[[], Iterable[Answers]] = tuple,
    ) -> None:
        #: The answers of this process. `all_answers` includes other processes.
        self.answers = Answers(keyless=keyless)
        self._answered = answered
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self._totals: dict[tuple[str, str], ModelMetrics] = {}
        self._elsewhere = elsewhere

    def model(self, name: str, version: str) -> ModelMetrics:
        """Return this process's numbers of a version. Each call returns the same
        object.
        """
        key = (name, version)
        found = self._models.get(key)
        if found is None:
            found = self._models.setdefault(key, ModelMetrics(name, version))
        return found

    def total(self, name: str, version: str) -> ModelMetrics:
        """Return the present numbers of a version, over all processes; read only."""
        mine = self.model(name, version)
        others = tuple(self._elsewhere(name, version))
        if not others:
            return mine
        total = self._totals.get((name, version))
        if total is None:
            total = self._totals[name, version] = ModelMetrics(name, version)
        total.reset()
        total.add(mine)
        for other in others:
            total.add(other)
        return total

    def all_answers(self) -> dict[Labels, int]:
        """Return the answers of all processes, as they are now."""
        total: dict[Labels, int] = {}
        for answers in (self.answers, *self._answered()):
            for labels, count in answers.items():
                total[labels] = total.get(labels, 0) + count
        return total

    def models(self) -> list[ModelMetrics]:
        """Return the metrics of all versions, sorted by name and version."""
        return [self.total(*key) for key in sorted(self._models)]

    def __repr__(self) -> str:
        return f"<MetricsRegistry models={len(self._models)}>"


def bucket_of(ns: int) -> int:
    """Return the number of the bucket of a duration."""
    return bisect_left(BOUNDS_NS, ns)
