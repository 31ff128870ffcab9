#!/usr/bin/env python3
"""Statistics of the requests that were served."""
import argparse

import model_runtime
import numpy as np

PHASES = ("request", "read_preparation", "read_queue", "computation")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+", required=True)
    args = parser.parse_args()
    config = model_runtime.ModelRunnerConfig()
    config.flush_on_waiting_outputs = True
    config.request_tracepoints_buffer_size = 50
    runner = model_runtime.ModelRunner(model_runtime.PopefPaths(args.popef), config)
    data = {
        desc.name: np.random.randn(*desc.shape).astype(desc.numpy_data_type())
        for desc in runner.getExecuteInputs()
    }
    for _ in range(20):
        runner.execute(data)

    trace = {}
    runner.getTimeTrace(trace)
    print("last request:", trace)
    assert set(trace) == {f"{phase}_duration_us" for phase in PHASES}
    assert all(value >= 0 for value in trace.values())
    assert trace["computation_duration_us"] <= trace["request_duration_us"]

    half, most, mean, count = {}, {}, {}, {}
    runner.getMonitoringStatisticsPercentile(half, 0.5)
    runner.getMonitoringStatisticsPercentile(most, 0.999)
    runner.getMonitoringStatisticsMean(mean)
    runner.getMonitoringStatisticsTotalCount(count)
    for phase in PHASES:
        key = f"{phase}_monitoring_statistics_percentile_us"
        assert half[key] <= most[key]
        assert mean[f"{phase}_monitoring_statistics_mean_us"] <= most[key]
        assert count[f"{phase}_monitoring_statistics_count"] == 20
    print("median:", half, "P99.9:", most, "mean:", mean)
    for _ in range(100):
        runner.execute(data)
    count = {}
    runner.getMonitoringStatisticsTotalCount(count, 0)
    print("count:", count)
    print("Success: exiting")


if __name__ == "__main__":
    main()
