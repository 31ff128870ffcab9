"""What a worker counts, as its supervisor reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from app.errors import FailureReason, Outcome, Row
from app.observe.metrics import MAX_BATCH_SIZES, MetricsRegistry, ModelMetrics
from app.observe.token_metrics import TokenCounts
from popgate_workers.shared_counters import MOST_DEVICES, MOST_MODELS, CounterSegment


def numbers(metrics: ModelMetrics) -> tuple[object, ...]:
    failed = (metrics.failed[outcome] for outcome in Outcome)
    histograms = metrics.request, metrics.queue, metrics.compute, *failed
    return (
        metrics.statistics(),
        metrics.failures,
        metrics.exec_count,
        [(h.counts, h.sum_ns) for h in (*histograms, metrics.tokens.tokenizing)],
        (metrics.tokens.tokens, metrics.tokens.padded, metrics.tokens.batches),
    )


def counted(*lengths: int) -> TokenCounts:
    """A request whose rows ran together."""
    counts = TokenCounts()
    counts.tokenizing_ns = 1000 * sum(lengths)
    for length in lengths:
        counts.add(length, len(lengths), max(lengths))
    return counts


@pytest.fixture
def segment() -> Iterator[CounterSegment]:
    segment = CounterSegment.create()
    yield segment
    segment.close()


def test_what_is_counted_is_read_by_another_process(segment: CounterSegment) -> None:
    theirs = CounterSegment.attach(os.dup(segment.memory.fd))
    plain = ModelMetrics("m", "1")
    shared = theirs.metrics(3, "m", "1")
    assert theirs.metrics(3, "m", "1") is shared
    for metrics in (plain, shared):
        for number in range(1, 50):
            metrics.begin()
            metrics.success(
                number * 40_000,
                number * 1000,
                number * 700,
                rows=1 + number % 3,
                batch_rows=4 + number % 5,
                input_ns=number,
                output_ns=2 * number,
            )
            metrics.count_tokens(counted(*range(3, 3 + number)))
        for reason in FailureReason:
            metrics.begin()
            metrics.failure(Row(503, "device_lost", reason), 5000)
    plain.last_inference = shared.last_inference
    assert numbers(segment.read(3, "m", "1")) == numbers(plain)
    assert numbers(segment.read(2, "m", "1")) == numbers(ModelMetrics("m", "1"))
    shared.begin()
    shared.show_gauges(7)
    found = segment.read(3, "m", "1")
    assert (found.pending, found.awaiting) == (1, 7)
    theirs.show_device(4, 9)
    theirs.show_device(MOST_DEVICES, 9)
    assert (segment.on_device(4), segment.on_device(MOST_DEVICES)) == (9, 0)
    theirs.close()


def test_the_last_block_and_the_most_batch_sizes_have_room(
    segment: CounterSegment,
) -> None:
    shared = segment.metrics(MOST_MODELS - 1, "m", "1")
    for rows in range(1, MAX_BATCH_SIZES + 10):
        shared.begin()
        shared.success(1, rows=1, batch_rows=rows)
    found = segment.read(MOST_MODELS - 1, "m", "1")
    assert found.successes == MAX_BATCH_SIZES + 9
    assert len(found.batches) == MAX_BATCH_SIZES
    assert found.exec_count == shared.exec_count


def test_totals_have_what_is_counted_elsewhere() -> None:
    others: list[ModelMetrics] = []
    registry = MetricsRegistry(lambda name, version: others)
    mine = registry.model("m", "1")
    assert registry.total("m", "1") is mine
    mine.begin()
    mine.success(1000, rows=2, batch_rows=2)
    other = ModelMetrics("m", "1")
    other.begin()
    other.begin()
    other.success(3000, rows=1, batch_rows=2)
    others += [other, other]
    (total,) = registry.models()
    assert total is registry.total("m", "1")  # the same one, read anew
    assert (total.successes, total.inference_count, total.pending) == (3, 4, 2)
    assert (total.exec_count, total.request.sum_ns) == (2, 7000)
    assert mine.successes == 1
