"""What is counted, under which names, and the Prometheus text of it.

The names, labels and units of the counters are Triton's (``nv_inference_…``,
cumulative, microseconds), because existing dashboards scrape them: they end in neither
``_total`` nor ``_seconds``, which is why the text is written here and not by a client
library. Latency histograms are our own and follow Prometheus' conventions (seconds).
OpenMetrics knows no counter without ``_total``: Triton's are of unknown type in it, so
that every name is the same in both forms.

Counting happens on the event loop's thread only and reading does too, so nothing here
takes a lock. Everything is cumulative and never goes down, except the gauges.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from app.errors import FailureReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
#: The last line of OpenMetrics.
END = "# EOF\n"

NS_PER_SECOND = 1_000_000_000
NS_PER_US = 1_000

#: Upper bounds of batches in their histogram, in rows.
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

# Sizes of batches that are told apart for a model; few run more than a hundred.
MAX_BATCH_SIZES = 4096

# Upper bounds in seconds. From below the cost of one request of the smallest model to
# the slowest answer that a client waits for; about 2.3 times from one to the next.
LATENCY_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
BOUNDS_NS = tuple(round(bound * NS_PER_SECOND) for bound in LATENCY_BUCKETS)
# As OpenMetrics has numbers: 1.0, never 1.
_LE = (*map(repr, LATENCY_BUCKETS), "+Inf")


class Histogram:
    """Counts of durations in fixed buckets. Not cumulative until it is written out."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, ns: int) -> None:
        """Counts one duration. The hot path of ``ModelMetrics`` has this inlined."""
        self.counts[bisect_left(BOUNDS_NS, ns)] += 1
        self.sum_ns += ns

    def __repr__(self) -> str:
        return f"<Histogram count={self.count} sum={self.sum_ns / 1e9:.6f}s>"


class BatchMetrics:
    """The numbers of the batches of one size. Durations are nanoseconds.

    Every request adds its share of the batch it ran in (rows / batch rows), so that the
    sum is the number of batches, without asking the device.
    """

    __slots__ = ("compute_ns", "input_ns", "output_ns", "share")

    def __init__(self) -> None:
        self.share = 0.0
        self.compute_ns = 0.0
        self.input_ns = 0
        self.output_ns = 0

    def statistics(self, rows: int) -> dict[str, object]:
        """An entry of ``batch_stats`` in the protocol's statistics extension."""
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

    They outlive a reload of the version, so that they never go down while the process
    lives. ``pending`` is the number of requests taken in and not yet answered; draining
    waits for it to be 0. ``awaiting`` are those that no execution has taken yet, in
    other processes than this one.
    """

    __slots__ = (
        "awaiting",
        "batches",
        "compute",
        "failure_ns",
        "failures",
        "inference_count",
        "last_inference",
        "name",
        "pending",
        "queue",
        "request",
        "successes",
        "version",
    )

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.reset()

    def reset(self) -> None:
        """Nothing has been counted yet."""
        self.pending = 0
        self.awaiting = 0
        self.successes = 0
        self.failures = dict.fromkeys(FailureReason, 0)
        self.failure_ns = 0
        self.inference_count = 0
        self.batches: dict[int, BatchMetrics] = {}
        self.request = Histogram()
        self.queue = Histogram()
        self.compute = Histogram()
        self.last_inference = 0.0

    @property
    def exec_count(self) -> int:
        """Executions of the model: a batch of several requests counts once."""
        return int(sum(batch.share for batch in self.batches.values()) + 0.5)

    @property
    def compute_input_ns(self) -> int:
        """Decoding and validating, of all requests."""
        return sum(batch.input_ns for batch in self.batches.values())

    @property
    def compute_output_ns(self) -> int:
        """Encoding, of all requests."""
        return sum(batch.output_ns for batch in self.batches.values())

    @property
    def busy_ns(self) -> float:
        """How long devices have run it: a batch of several requests counts once."""
        return sum(batch.compute_ns for batch in self.batches.values())

    @property
    def failure_count(self) -> int:
        return sum(self.failures.values())

    def add(self, other: ModelMetrics) -> None:
        """Add what another process has counted of the same version."""
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
        ):
            mine.sum_ns += theirs.sum_ns
            for bucket, count in enumerate(theirs.counts):
                mine.counts[bucket] += count
        for rows, batch in other.batches.items():
            sum_of = self.batches.get(rows) or self._batch(rows)
            sum_of.share += batch.share
            sum_of.compute_ns += batch.compute_ns
            sum_of.input_ns += batch.input_ns
            sum_of.output_ns += batch.output_ns

    def begin(self) -> None:
        """One more request is on its way; ``success`` or ``failure`` ends it."""
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
    ) -> None:
        """Ends a request that was answered. Costs well under a microsecond.

        ``total_ns`` is from the complete body to the complete answer; ``input_ns`` is
        decoding and validating, ``output_ns`` encoding. ``rows`` is the number of
        inferences in the request (1 for a model that is not batched).
        """
        self.pending -= 1
        self.successes += 1
        self.inference_count += rows
        share = rows / batch_rows if batch_rows > rows else 1.0
        batch = self.batches.get(batch_rows)
        if batch is None:
            batch = self._batch(batch_rows)
        batch.share += share
        batch.compute_ns += share * compute_ns
        batch.input_ns += input_ns
        batch.output_ns += output_ns
        # Histogram.observe three times over, without its calls.
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

    def _batch(self, rows: int) -> BatchMetrics:
        """The numbers of a new size; sizes beyond the bound share one."""
        if len(self.batches) >= MAX_BATCH_SIZES:
            rows = max(self.batches)
        return self.batches.setdefault(rows, BatchMetrics())

    def failure(self, reason: FailureReason, total_ns: int = 0) -> None:
        """Ends a request that was answered with an error, or whose client is gone."""
        self.pending -= 1
        self.failures[reason] += 1
        self.failure_ns += total_ns

    def statistics(self) -> dict[str, object]:
        """The document of the protocol's statistics extension for this version."""
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
        }

    def __repr__(self) -> str:
        return (
            f"<ModelMetrics {self.name}/{self.version} successes={self.successes} "
            f"failures={self.failure_count} pending={self.pending}>"
        )


class MetricsRegistry:
    """The metrics of every version of a model that this server has served.

    `elsewhere` gives what other processes have counted of a version.
    """

    def __init__(
        self,
        elsewhere: Callable[[str, str], Iterable[ModelMetrics]] = lambda *key: (),
    ) -> None:
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self._totals: dict[tuple[str, str], ModelMetrics] = {}
        self._elsewhere = elsewhere

    def model(self, name: str, version: str) -> ModelMetrics:
        """The numbers that this process counts of a version; made at the first call,
        the same ones after."""
        key = (name, version)
        found = self._models.get(key)
        if found is None:
            found = self._models.setdefault(key, ModelMetrics(name, version))
        return found

    def total(self, name: str, version: str) -> ModelMetrics:
        """The numbers of a version, of all processes, as they are now; only to read."""
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

    def models(self) -> list[ModelMetrics]:
        """Those of all versions, sorted by name and version."""
        return [self.total(*key) for key in sorted(self._models)]

    def __repr__(self) -> str:
        return f"<MetricsRegistry models={len(self._models)}>"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric of the exposition: its name, type, help and samples.

    A sample is its labels and its value.
    """

    name: str
    kind: str
    text: str
    samples: Iterable[tuple[Mapping[str, str], float]]


def escape_label(value: str) -> str:
    r"""A label value as the text format wants it: ``\``, ``"`` and newlines escaped."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def format_labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{key}="{escape_label(value)}"' for key, value in labels.items())
    return "{" + inside + "}"


def render_families(
    families: Iterable[Family], *, openmetrics: bool = False
) -> Iterator[str]:
    """The text of simple metrics, one family at a time."""
    for family in families:
        lines = _head(family.name, family.kind, family.text, openmetrics)
        lines += [
            f"{family.name}{format_labels(labels)} {value + 0!r}"
            for labels, value in family.samples
        ]
        yield "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str, openmetrics: bool) -> list[str]:
    """The lines that describe a metric."""
    if openmetrics and kind == "counter":
        if name.endswith("_total"):
            name = name.removesuffix("_total")
        else:
            kind = "unknown"
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


_COUNTERS: tuple[tuple[str, str, Callable[[ModelMetrics], int]], ...] = (
    ("request_success", "Successful inference requests", lambda m: m.successes),
    ("count", "Inferences performed (a batch of n counts n)",
     lambda m: m.inference_count),
    ("exec_count", "Model executions (a batch counts 1)", lambda m: m.exec_count),
    ("request_duration_us", "Cumulative duration of successful requests, microseconds",
     lambda m: m.request.sum_ns // NS_PER_US),
    ("queue_duration_us", "Cumulative time requests waited to run, microseconds",
     lambda m: m.queue.sum_ns // NS_PER_US),
    ("compute_input_duration_us", "Cumulative time preparing inputs, microseconds",
     lambda m: m.compute_input_ns // NS_PER_US),
    ("compute_infer_duration_us", "Cumulative time executing the model, microseconds",
     lambda m: m.compute.sum_ns // NS_PER_US),
    ("compute_output_duration_us", "Cumulative time preparing outputs, microseconds",
     lambda m: m.compute_output_ns // NS_PER_US),
)  # fmt: skip

_HISTOGRAMS: tuple[tuple[str, str, Callable[[ModelMetrics], Histogram]], ...] = (
    ("popgate_request_duration_seconds",
     "Time from the complete request to the complete answer, successful requests",
     lambda m: m.request),
    ("popgate_queue_duration_seconds", "Time waited to run, successful requests",
     lambda m: m.queue),
    ("popgate_compute_duration_seconds",
     "Time in the batch that ran on the device, successful requests",
     lambda m: m.compute),
)  # fmt: skip


#: The exemplars of one of `_HISTOGRAMS` of a model, by the number of their bucket.
Exemplars = Callable[[ModelMetrics, str], Mapping[int, str]]


def render_models(
    models: Iterable[ModelMetrics],
    awaiting: Callable[[ModelMetrics], int],
    utilization: Mapping[int, float] | None = None,
    exemplars: Exemplars | None = None,
) -> Iterator[str]:
    """The text of the model metrics in pieces, one a family.

    `awaiting` is asked how many requests to a model no execution has taken yet;
    `utilization` is by the `id` of a model. With `exemplars` it is OpenMetrics.

    Histograms are written for models that have answered something: hundreds of idle
    models must not make every scrape megabytes.
    """
    models, busy_shares = list(models), utilization or {}
    is_open = exemplars is not None
    labels = {
        id(m): f'model="{escape_label(m.name)}",version="{escape_label(m.version)}"'
        for m in models
    }

    def family(
        name: str, kind: str, text: str, value: Callable[[ModelMetrics], object]
    ) -> str:
        lines = _head(name, kind, text, is_open)
        lines += [f"{name}{{{labels[id(m)]}}} {value(m)}" for m in models]
        return "\n".join(lines) + "\n"

    for suffix, text, value in _COUNTERS:
        yield family("nv_inference_" + suffix, "counter", text, value)
    name = "nv_inference_request_failure"
    lines = _head(name, "counter", "Failed inference requests, by reason", is_open)
    lines += [
        # In alphabetical order, as all labels are: some readers compare text.
        f'{name}{{model="{escape_label(m.name)}",reason="{reason.value}",'
        f'version="{escape_label(m.version)}"}} {count}'
        for m in models
        for reason, count in m.failures.items()
    ]
    yield "\n".join(lines) + "\n"
    yield family(
        "nv_inference_pending_request_count",
        "gauge",
        "Inference requests awaiting execution",
        awaiting,
    )
    yield family(
        "popgate_requests_in_flight",
        "gauge",
        "Inference requests taken in and not yet answered",
        lambda m: m.pending,
    )
    yield family(
        "popgate_model_busy_seconds_total",
        "counter",
        "Time that devices have run the model: a batch counts once",
        lambda m: f"{m.busy_ns / 1e9:.9f}",
    )
    yield family(
        "popgate_model_utilization",
        "gauge",
        "Devices that the model keeps busy: 1 is all of one device's time",
        lambda m: f"{busy_shares.get(id(m), 0.0):.6f}",
    )
    answered = [m for m in models if m.successes]
    name = "popgate_batch_rows"
    text = "Rows of the batches that the model has run"
    lines = _head(name, "histogram", text, is_open)
    for m in answered:
        lines += _batch_lines(name, labels[id(m)], m.batches)
    yield "\n".join(lines) + "\n"
    for name, text, histogram in _HISTOGRAMS:
        lines = _head(name, "histogram", text, is_open)
        for m in answered:
            shown = {} if exemplars is None else exemplars(m, name)
            lines += _histogram_lines(name, labels[id(m)], histogram(m), shown)
        yield "\n".join(lines) + "\n"


def _batch_lines(
    name: str, labels: str, batches: Mapping[int, BatchMetrics]
) -> Iterator[str]:
    sizes = sorted(batches.items())
    for bound in (*BATCH_BUCKETS, math.inf):
        # Not `str`: compiled, they are all of one type, and 4 is 4.0.
        le = "+Inf" if bound == math.inf else f"{bound:.1f}"
        # Whole batches, as OpenMetrics wants it; a sum of shares is never quite whole.
        count = int(sum(batch.share for rows, batch in sizes if rows <= bound) + 0.5)
        yield f'{name}_bucket{{{labels},le="{le}"}} {count}'
    rows_run = sum(rows * batch.share for rows, batch in sizes)
    yield f"{name}_sum{{{labels}}} {rows_run:.6f}"
    yield f"{name}_count{{{labels}}} {count}"


def _histogram_lines(
    name: str, labels: str, histogram: Histogram, exemplars: Mapping[int, str]
) -> Iterator[str]:
    total = 0
    for number, (le, count) in enumerate(zip(_LE, histogram.counts, strict=True)):
        total += count
        line = f'{name}_bucket{{{labels},le="{le}"}} {total}'
        yield line + exemplars.get(number, "")
    yield f"{name}_sum{{{labels}}} {histogram.sum_ns / NS_PER_SECOND:.9f}"
    yield f"{name}_count{{{labels}}} {total}"


def bucket_of(ns: int) -> int:
    """The number of the bucket of a duration."""
    return bisect_left(BOUNDS_NS, ns)
