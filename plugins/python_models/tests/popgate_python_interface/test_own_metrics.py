"""Metrics of a model's own, in its process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from popgate_python_interface.own_metrics import (
    MAX_FAMILIES,
    MAX_SERIES,
    MetricSeries,
    OwnMetrics,
    Row,
)
from tests.support import until


def metric(kind: str, **more: Any) -> MetricSeries:
    return OwnMetrics().family("n", "", kind).series({"a": "b"}, **more)


def test_what_has_changed_is_told_soon_and_at_the_end() -> None:
    told: dict[str, float] = {}

    def tell(rows: Sequence[Row]) -> None:
        for name, kind, text, labels, bounds, values in rows:
            assert (name, kind, text, bounds) == ("n_total", "counter", "Some", ())
            told[labels[0][1]] = values[0]

    metrics = OwnMetrics(tell)
    family = metrics.family("n_total", "Some", "counter")
    counters = [family.series({"a": str(n)}) for n in range(30)]
    threads = [threading.Thread(target=c.increment, args=(2,)) for c in counters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: told == {str(n): 2 for n in range(30)})
    counters[0].increment(0.5)
    metrics.close()
    assert told["0"] == 2.5


def test_the_same_name_and_labels_are_the_same_metric() -> None:
    metrics = OwnMetrics()
    first = metrics.family("n", "", "gauge").series({"a": "b", "c": "d"})
    assert metrics.family("n", "", "gauge").series({"c": "d", "a": "b"}) is first
    first.set(3)
    first.increment(-1)
    assert first.value() == 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: OwnMetrics().family("a-b", "", "gauge"), "cannot be the name"),
        (lambda: OwnMetrics().family("n" * 201, "", "gauge"), "cannot be the name"),
        (lambda: OwnMetrics().family("nv_x", "", "gauge"), "belong to the server"),
        (lambda: OwnMetrics().family("n", "x" * 1001, "gauge"), "1000 bytes"),
        (lambda: OwnMetrics().family("n", "", "gauge").series({"__a": ""}), "a label"),
        (lambda: OwnMetrics().family("n", "", "gauge").series({"a": 1}), "got int"),  # type: ignore[dict-item]
        (lambda: OwnMetrics().family("n", "", "gauge").series({"a": "é" * 500}),
         "1000 bytes"),
        (lambda: OwnMetrics().family("n", "", "histogram").series({"le": ""}, [1]),
         "sets the label 'le' itself"),
        (lambda: metric("histogram"), "needs 1 to 100 ascending, finite buckets"),
        (lambda: metric("histogram", buckets=[2, 1]), r"got \[2.0, 1.0\]"),
        (lambda: metric("gauge", buckets=[1]), "has no buckets"),
        (lambda: metric("counter").increment(-1), "at least 0, got -1"),
        (lambda: metric("counter").set(1), "counter, which has no set"),
        (lambda: metric("gauge").observe(1), "gauge, which has no observe"),
        (lambda: metric("histogram", buckets=[1]).value(), "has no value"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_another_kind_or_buckets_of_a_name_are_refused() -> None:
    metrics = OwnMetrics()
    family = metrics.family("n", "", "histogram")
    family.series(buckets=[1])
    with pytest.raises(ValueError, match="exists already as a histogram"):
        metrics.family("n", "", "gauge")
    with pytest.raises(ValueError, match=r"already has the buckets \[1.0\]"):
        family.series(buckets=[2])


def test_there_are_so_many_at_most() -> None:
    metrics = OwnMetrics()
    family = metrics.family("n0", "", "gauge")
    for number in range(MAX_SERIES):
        family.series({"a": str(number)})
    family.series({"a": "0"})
    with pytest.raises(ValueError, match="1000 combinations"):
        family.series({"a": "more"})
    for number in range(1, MAX_FAMILIES):
        metrics.family(f"n{number}", "", "gauge")
    with pytest.raises(ValueError, match="100 metrics at most"):
        metrics.family("more", "", "gauge")
