"""The text that Prometheus reads, and OpenMetrics.

The names, labels and units of the counters are Triton's (``nv_inference_…``,
cumulative, microseconds), because existing dashboards scrape them. They end in neither
``_total`` nor ``_seconds``, so this module writes the text, not a client library.
Latency histograms are our own and follow Prometheus' conventions (seconds). OpenMetrics
knows no counter without ``_total``. Triton's counters have the type ``unknown`` there,
so every name is the same in both forms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from app.observe.histogram import LATENCY_BUCKETS, NS_PER_SECOND, Histogram
from app.observe.metrics import BatchMetrics, ModelMetrics
from app.observe.token_metrics import TOKEN_BUCKETS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
#: The last line of OpenMetrics.
END = "# EOF\n"

NS_PER_US = 1_000

#: Upper bounds of batches in their histogram, in rows.
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# Written as OpenMetrics requires: 1.0, never 1.
_LE = (*map(repr, LATENCY_BUCKETS), "+Inf")


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
    r"""Return a label value as the text format wants it: ``\``, ``"`` and newlines
    escaped.
    """
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def format_labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{key}="{escape_label(value)}"' for key, value in labels.items())
    return "{" + inside + "}"


def format_value(value: float) -> str:
    """Return a value without a fraction of zero.

    Compiled code turns each `int` of a sample into a `float`.
    """
    number = float(value)
    return str(int(number)) if number.is_integer() else repr(number)


def render_families(
    families: Iterable[Family], *, openmetrics: bool = False
) -> Iterator[str]:
    """Yield the text of simple metrics, one family at a time."""
    for family in families:
        name = family.name
        samples = [
            f"{name}{format_labels(labels)} {format_value(value)}"
            for labels, value in family.samples
        ]
        yield family_text(name, family.kind, family.text, samples, openmetrics)


def family_text(
    name: str, kind: str, text: str, samples: Iterable[str], openmetrics: bool
) -> str:
    """Return the lines of a metric: two that describe it, and its samples."""
    if openmetrics and kind == "counter":
        if name.endswith("_total"):
            name = name.removesuffix("_total")
        else:
            kind = "unknown"
    head = f"# HELP {name} {text}", f"# TYPE {name} {kind}"
    return "\n".join([*head, *samples]) + "\n"


_COUNTERS: tuple[tuple[str, str, Callable[[ModelMetrics], int]], ...] = (
    ("request_success", "Successful inference requests", lambda m: m.successes),
    ("count", "Inferences performed (a batch of n counts n)",
     lambda m: m.inference_count),
    ("exec_count", "Model executions (a batch counts 1)", lambda m: m.exec_count),
    ("request_duration_us", "Cumulative duration of successful requests, microseconds",
     lambda m: m.request.sum_ns // NS_PER_US),
    ("queue_duration_us", "Cumulative time that requests were queued, microseconds",
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
    ("popgate_queue_duration_seconds", "Time in the queue, successful requests",
     lambda m: m.queue),
    ("popgate_compute_duration_seconds",
     "Time in the batch that ran on the device, successful requests",
     lambda m: m.compute),
)  # fmt: skip


_TOKEN_COUNTERS: tuple[tuple[str, str, Callable[[ModelMetrics], int]], ...] = (
    ("popgate_tokens_total", "Tokens of the texts of successful requests",
     lambda m: m.tokens.tokens),
    ("popgate_padded_tokens_total", "Tokens that ran for them, padding included",
     lambda m: m.tokens.padded),
)  # fmt: skip
_BATCH_LE = (*(f"{bound}.0" for bound in BATCH_BUCKETS), "+Inf")
_TOKENS_LE = (*(f"{bound}.0" for bound in TOKEN_BUCKETS), "+Inf")


#: Returns the exemplars of a model's histogram in `_HISTOGRAMS`, by bucket number.
Exemplars = Callable[[ModelMetrics, str], Mapping[int, str]]


def render_models(
    models: Iterable[ModelMetrics],
    awaiting: Callable[[ModelMetrics], int],
    utilization: Mapping[int, float] | None = None,
    exemplars: Exemplars | None = None,
) -> Iterator[str]:
    """Yield the text of the model metrics in pieces, one a family.

    `awaiting` returns the number of requests to a model that no execution has taken
    yet. `utilization` is by the `id` of a model. With `exemplars` the format is
    OpenMetrics.

    Histograms are written only for models that have answered a request: hundreds of
    idle models would make every scrape megabytes.
    """
    busy_shares = utilization or {}
    is_open = exemplars is not None
    labelled = [
        (m, f'model="{escape_label(m.name)}",version="{escape_label(m.version)}"')
        for m in models
    ]

    def family(
        name: str, kind: str, text: str, value: Callable[[ModelMetrics], object]
    ) -> str:
        lines = [f"{name}{{{labels}}} {value(m)}" for m, labels in labelled]
        return family_text(name, kind, text, lines, is_open)

    for suffix, text, value in _COUNTERS:
        yield family("nv_inference_" + suffix, "counter", text, value)
    yield _failures([m for m, _ in labelled], is_open)
    for name, kind, text, number in (
        ("nv_inference_pending_request_count", "gauge",
         "Inference requests awaiting execution", awaiting),
        ("popgate_requests_in_flight", "gauge",
         "Inference requests accepted but not yet answered", lambda m: m.pending),
        ("popgate_model_busy_seconds_total", "counter",
         "Time that devices have run the model, counted once for a batch",
         lambda m: f"{m.busy_ns / 1e9:.9f}"),
        ("popgate_model_utilization", "gauge",
         "Number of devices that the model keeps busy: 1 is all the time of one device",
         lambda m: f"{busy_shares.get(id(m), 0.0):.6f}"),
    ):  # fmt: skip
        yield family(name, kind, text, number)
    yield _failed([(m, labels) for m, labels in labelled if m.failure_count], is_open)
    answered = [(m, labels) for m, labels in labelled if m.successes]
    name = "popgate_batch_rows"
    text = "Rows in the batches that the model has run"
    lines: list[str] = []
    for m, labels in answered:
        lines += _batch_lines(name, labels, m.batches)
    yield family_text(name, "histogram", text, lines, is_open)
    for name, text, histogram in _HISTOGRAMS:
        lines = []
        for m, labels in answered:
            shown = {} if exemplars is None else exemplars(m, name)
            lines += _histogram_lines(name, labels, histogram(m), shown)
        yield family_text(name, "histogram", text, lines, is_open)
    tokenized = [(m, labels) for m, labels in labelled if m.tokens.tokens]
    if tokenized:
        yield from _tokens(tokenized, is_open)


def _tokens(
    labelled: Sequence[tuple[ModelMetrics, str]], is_open: bool
) -> Iterator[str]:
    """Yield the families of models that have tokenized something."""
    for name, text, value in _TOKEN_COUNTERS:
        lines = [f"{name}{{{labels}}} {value(m)}" for m, labels in labelled]
        yield family_text(name, "counter", text, lines, is_open)
    name = "popgate_batch_tokens"
    text = "Tokens of the batches that the model has run, padding included"
    lines = []
    for m, labels in labelled:
        counts = [int(total + 0.5) for total in accumulate(m.tokens.batches)]
        lines += _lines(name, labels, _TOKENS_LE, counts, str(m.tokens.padded))
    yield family_text(name, "histogram", text, lines, is_open)
    name = "popgate_tokenizing_duration_seconds"
    text = "Time of tokenizing the texts of one request, successful requests"
    lines = []
    for m, labels in labelled:
        lines += _histogram_lines(name, labels, m.tokens.tokenizing, {})
    yield family_text(name, "histogram", text, lines, is_open)


def _failed(labelled: Iterable[tuple[ModelMetrics, str]], is_open: bool) -> str:
    name = "popgate_failed_request_duration_seconds"
    text = "Time from the complete request to its failure, by outcome"
    lines: list[str] = []
    for m, labels in labelled:
        for outcome, histogram in m.failed.items():
            if histogram.count:
                more = f'{labels},outcome="{outcome.value}"'
                lines += _histogram_lines(name, more, histogram, {})
    return family_text(name, "histogram", text, lines, is_open)


def _failures(models: Iterable[ModelMetrics], is_open: bool) -> str:
    name, text = "nv_inference_request_failure", "Failed inference requests, by reason"
    lines = [
        # Labels are in alphabetical order everywhere, because some readers compare
        # text.
        f'{name}{{model="{escape_label(m.name)}",reason="{reason.value}",'
        f'version="{escape_label(m.version)}"}} {count}'
        for m in models
        for reason, count in m.failures.items()
    ]
    return family_text(name, "counter", text, lines, is_open)


def _batch_lines(
    name: str, labels: str, batches: Mapping[int, BatchMetrics]
) -> list[str]:
    sizes = sorted(batches)
    sums = [0.0, *accumulate(batches[rows].share for rows in sizes)]
    ends = [*(bisect_right(sizes, bound) for bound in BATCH_BUCKETS), -1]
    rows_run = sum(rows * batches[rows].share for rows in sizes)
    # OpenMetrics requires whole batches, and a sum of shares is never quite whole.
    counts = [int(sums[end] + 0.5) for end in ends]
    return _lines(name, labels, _BATCH_LE, counts, f"{rows_run:.6f}")


def _histogram_lines(
    name: str, labels: str, histogram: Histogram, exemplars: Mapping[int, str]
) -> list[str]:
    counts = list(accumulate(histogram.counts))
    seconds = f"{histogram.sum_ns / NS_PER_SECOND:.9f}"
    lines = _lines(name, labels, _LE, counts, seconds)
    for number, exemplar in exemplars.items():
        lines[number] += exemplar
    return lines


def _lines(
    name: str, labels: str, bounds: Sequence[str], counts: Sequence[int], amount: str
) -> list[str]:
    """Return the lines of a histogram: its counts up to each bound, and their sum."""
    start = f'{name}_bucket{{{labels},le="'
    return [
        *[f'{start}{le}"}} {n}' for le, n in zip(bounds, counts, strict=True)],
        f"{name}_sum{{{labels}}} {amount}",
        f"{name}_count{{{labels}}} {counts[-1]}",
    ]
