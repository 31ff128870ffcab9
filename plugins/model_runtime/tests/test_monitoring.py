"""The monitoring calls: their keys, and when there is something to tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import model_runtime
from engine import InvalidInput

PHASES = ("request", "read_preparation", "read_queue", "computation")
INPUTS = {name: np.ones((3, 4), np.float32) for name in ("tensor_A", "tensor_B")}
CALLS: list[tuple[str, str]] = [
    ("getTimeTrace", "duration_us"),
    ("getMonitoringStatisticsPercentile", "monitoring_statistics_percentile_us"),
    ("getMonitoringStatisticsMean", "monitoring_statistics_mean_us"),
    ("getMonitoringStatisticsTotalCount", "monitoring_statistics_count"),
]


def runner_of(simple: str, *, on: bool) -> model_runtime.ModelRunner:
    config = model_runtime.ModelRunnerConfig()
    config.flush_on_waiting_outputs = on
    config.request_tracepoints_buffer_size = 4
    return model_runtime.ModelRunner(simple, config)


def test_calls_fill_a_dictionary_and_return_it(simple: str) -> None:
    runner = runner_of(simple, on=True)
    for _ in range(6):
        runner.execute(INPUTS)
    for name, suffix in CALLS:
        call: Callable[..., Any] = getattr(runner, name)
        given: dict[str, float] = {}
        assert call(given) is given
        assert set(given) == {f"{phase}_{suffix}" for phase in PHASES}
        assert all(isinstance(v, float) and v > 0 for v in given.values())
        assert set(call()) == set(given)
        with pytest.raises(InvalidInput, match="replica_id must be from 0 to 0, got 1"):
            call({}, replica_id=1)
    counts = runner.getMonitoringStatisticsTotalCount({})
    assert set(counts.values()) == {6.0}
    times = [runner.getTimeTrace({}, 0, cur)["request_duration_us"] for cur in range(4)]
    assert runner.getTimeTrace({})["request_duration_us"] == times[-1]
    high = runner.getMonitoringStatisticsPercentile({}, 0.999)
    low = runner.getMonitoringStatisticsPercentile({}, quantile=0.1)
    key = "request_monitoring_statistics_percentile_us"
    assert (low[key], high[key]) == (min(times), max(times))
    mean = runner.getMonitoringStatisticsMean({})
    assert mean["request_monitoring_statistics_mean_us"] == pytest.approx(
        np.mean(times)
    )
    with pytest.raises(InvalidInput):
        runner.getTimeTrace({}, cur=4)


def test_without_flush_on_waiting_outputs_nothing_is_recorded(simple: str) -> None:
    runner = runner_of(simple, on=False)
    runner.execute(INPUTS)
    for name, _ in CALLS:
        assert set(getattr(runner, name)({}).values()) == {0.0}
