"""The numbers of models and of the machine.

Covers: app/observe/machine.py, app/observe/histogram.py,
app/observe/token_metrics.py.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from app.errors import FailureReason, Row
from app.observe.histogram import LATENCY_BUCKETS, Histogram
from app.observe.machine import BusyShares, Processors, memory
from app.observe.metrics import MetricsRegistry, ModelMetrics


def used_metrics() -> ModelMetrics:
    metrics = ModelMetrics("digits", "3")
    for _ in range(4):
        metrics.begin()
    metrics.success(
        2_000_000, 300_000, 1_500_000, rows=2, batch_rows=8, input_ns=40_000,
        output_ns=60_000,
    )  # fmt: skip
    metrics.success(5_000_000, 0, 4_000_000, rows=6, batch_rows=8)
    metrics.failure(Row(500, "execution_failed", FailureReason.BACKEND), 1_000_000)
    return metrics


def test_counts_of_requests_rows_and_executions() -> None:
    metrics = used_metrics()
    assert metrics.successes == 2
    assert metrics.inference_count == 8
    assert metrics.exec_count == 1  # both rode in the same batch of 8
    assert metrics.failure_count == 1
    assert metrics.pending == 1


def test_a_request_larger_than_its_batch_counts_as_one_execution() -> None:
    metrics = ModelMetrics("m", "1")
    metrics.begin()
    metrics.success(1, rows=100, batch_rows=64)
    assert metrics.exec_count == 1
    assert metrics.inference_count == 100


def test_a_request_whose_rows_ran_in_several_batches_counts_its_share_of_each() -> None:
    metrics = ModelMetrics("m", "1")
    metrics.begin()
    # Three rows: two filled a batch of 2, one ran beside another request's row.
    metrics.success(9_000, 0, 6_000, rows=3, batch_rows=2, runs=1.5)
    metrics.begin()
    metrics.success(9_000, 0, 2_000, rows=1, batch_rows=2)
    assert metrics.exec_count == 2
    assert metrics.batches[2].compute_ns == 4_000


def test_the_machine() -> None:
    processors = Processors(seconds=0.0)
    end = time.monotonic() + 30
    while not processors.utilization() and time.monotonic() < end:
        sum(range(100_000))  # at least this keeps one busy
    assert 0 < processors.utilization() <= 1
    once = Processors(seconds=1000.0)
    assert once.utilization() == 0.0
    total, used = memory()
    assert 1 << 20 < used < total


def test_busy_shares() -> None:
    shares: BusyShares[str] = BusyShares(seconds=0.0)
    assert shares.of({"a": 0}) == {"a": 0.0}
    began = time.monotonic_ns()
    busy = 0
    while not busy:  # it was busy for as long as this took
        busy = time.monotonic_ns() - began
    found = shares.of({"a": busy, "new": 5_000_000_000})
    assert 0 < found["a"] <= 1
    assert found["new"] == 0.0
    assert shares.of({"new": 5_000_000_000}) == {"new": 0.0}
    seldom: BusyShares[str] = BusyShares(seconds=1000.0)
    assert seldom.of({"a": 1 << 60}) == {"a": 0.0}


def test_buckets_hold_their_upper_bound() -> None:
    histogram = Histogram()
    bounds = [round(b * 1e9) for b in LATENCY_BUCKETS]
    for bound in bounds:
        histogram.observe(bound)
        histogram.observe(bound + 1)
    assert histogram.counts == [1, *[2] * (len(bounds) - 1), 1]
    histogram.observe(0)
    assert histogram.counts[0] == 2
    assert histogram.count == 2 * len(bounds) + 1


def test_statistics_are_the_same_numbers() -> None:
    document = used_metrics().statistics()
    assert document["name"] == "digits"
    assert document["inference_count"] == 8
    assert document["execution_count"] == 1
    stats = document["inference_stats"]
    assert isinstance(stats, dict)
    assert stats["success"] == {"count": 2, "ns": 7_000_000}
    assert stats["fail"] == {"count": 1, "ns": 1_000_000}
    assert stats["queue"]["ns"] == 300_000
    assert stats["compute_infer"]["ns"] == 5_500_000
    assert isinstance(document["last_inference"], int)
    assert document["last_inference"] > 1_600_000_000_000


def test_registry_keeps_the_numbers_of_a_version() -> None:
    registry = MetricsRegistry()
    first = registry.model("b", "1")
    first.begin()
    first.success(10)
    assert registry.model("b", "1") is first
    registry.model("a", "1")
    assert [m.name for m in registry.models()] == ["a", "b"]


def test_batches_by_their_size() -> None:
    metrics = used_metrics()
    metrics.begin()
    metrics.success(1, 0, 500_000, rows=3, batch_rows=3, input_ns=7, output_ns=9)
    statistics: Any = metrics.statistics()
    three, eight = statistics["batch_stats"]
    assert three == {
        "batch_size": 3,
        "compute_input": {"count": 1, "ns": 7},
        "compute_infer": {"count": 1, "ns": 500_000},
        "compute_output": {"count": 1, "ns": 9},
    }
    # Of eight rows, two and six: one batch, and the time it took by their shares.
    assert eight["batch_size"] == 8
    assert eight["compute_infer"] == {"count": 1, "ns": 3_375_000}
    assert (metrics.exec_count, metrics.compute_input_ns) == (2, 40_007)


def test_sizes_of_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.observe.metrics.MAX_BATCH_SIZES", 3)
    metrics = ModelMetrics("m", "1")
    for rows in range(1, 9):
        metrics.begin()
        metrics.success(1, rows=rows, batch_rows=rows)
    assert list(metrics.batches) == [1, 2, 3]
    assert metrics.exec_count == 8
