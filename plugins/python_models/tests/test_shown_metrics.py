"""Metrics that models have of their own, put together."""

from __future__ import annotations

from math import inf, nan

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from app.observe.exposition import END
from popgate_python_messages.call_messages import MetricTold
from popgate_python_models.shown_metrics import MAX_SERIES, ShownMetrics


def told(
    name: str, kind: str, *values: float, bounds: tuple[float, ...] = (), to: str = "a"
) -> MetricTold:
    return MetricTold(name, kind, 'a "b"', (("to", to),), bounds, values)


def lines(metrics: ShownMetrics) -> list[str]:
    text = "".join(metrics.render())
    return [line for line in text.splitlines() if line[0] != "#"]


def test_counters_add_up_and_stay() -> None:
    metrics = ShownMetrics()
    metrics.record(1, "m", [told("n", "counter", 2.0)])
    metrics.record(2, "other", [told("n", "counter", 3.0)])
    metrics.gone(1)
    metrics.record(3, "m", [told("n", "counter", 4.0)])
    assert lines(metrics) == ['n{to="a"} 9.0']


@pytest.mark.parametrize(
    ("value", "shown"), [(inf, "+Inf"), (-inf, "-Inf"), (nan, "NaN"), (-0.5, "-0.5")]
)
def test_gauges_go_with_the_last_process(value: float, shown: str) -> None:
    metrics = ShownMetrics()
    metrics.record(1, "m", [told("n", "gauge", 2.0)])
    metrics.record(2, "m", [told("n", "gauge", value)])
    metrics.gone(1)
    assert lines(metrics) == [f'n{{to="a"}} {shown}']
    metrics.gone(2)
    metrics.record(3, "m", [told("n", "counter", 1.0)])
    assert lines(metrics) == ['n{to="a"} 1.0']


def test_openmetrics_reads_them() -> None:
    metrics = ShownMetrics()
    histogram = told("h", "histogram", 1.0, 2.0, 1.0, 7.5, bounds=(1.0, 2.0))
    metrics.record(1, "m", [histogram, told("n_total", "counter", 2.0)])
    text = "".join(metrics.render(openmetrics=True)) + END
    read = text_string_to_metric_families
    histograms, counters = read(text)  # type: ignore[no-untyped-call]
    found = [sample.value for sample in histograms.samples]
    assert (histograms.documentation, found) == ('a "b"', [1, 3, 4, 7.5, 4])
    assert (counters.name, counters.samples[0].value) == ("n", 2)


@pytest.mark.parametrize(
    ("clash", "why"),
    [
        (told("h", "gauge", 1.0), "another model has a histogram of that name"),
        (told("h_sum", "counter", 1.0), "there is already a histogram h"),
        (told("h", "histogram", 1.0, 1.0, bounds=(9.0,)), "with other buckets"),
    ],
)
def test_what_clashes_is_said_once(
    clash: MetricTold, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = ShownMetrics()
    metrics.record(1, "m", [told("h", "histogram", 1.0, 1.0, bounds=(1.0,))])
    before = lines(metrics)
    metrics.record(2, "n", [clash, clash])
    assert lines(metrics) == before
    (record,) = caplog.records
    assert why in record.getMessage()
    metrics.gone(1)
    metrics.gone(2)
    metrics.record(3, "m", [told("h", "histogram", 2.0, 1.0, bounds=(9.0,))])
    assert 'h_bucket{to="a",le="9.0"} 2' in lines(metrics)


def test_a_model_has_so_many_at_most(caplog: pytest.LogCaptureFixture) -> None:
    metrics = ShownMetrics()
    many = [told("n", "gauge", 1.0, to=str(n)) for n in range(MAX_SERIES + 1)]
    metrics.record(1, "m", many)
    assert len(lines(metrics)) == MAX_SERIES
    assert "1000 combinations of labels" in caplog.text
    metrics.gone(1)
    metrics.record(2, "m", many[:1])
    assert lines(metrics) == ['n{to="0"} 1.0']
