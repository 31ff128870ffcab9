#!/usr/bin/env python3
# Throughput and latency of a PopEF model: blocking calls, then calls in flight.
import argparse
import sys
import time
from collections import deque

import model_runtime as mr
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("-p", "--popef", required=True)
parser.add_argument("--iterations", type=int, default=200)
parser.add_argument("--in-flight", type=int, default=8)
args = parser.parse_args()

conf = mr.ModelRunnerConfig()
conf.timeout_ns = 500 * 1000
conf.validate_io_params = False
conf.flush_on_waiting_outputs = True
conf.request_tracepoints_buffer_size = args.iterations
runner = mr.ModelRunner(args.popef, conf)

rng = np.random.default_rng(0)
inputs, outputs = {}, {}
for d in runner.getExecuteInputs():
    inputs[d.name] = rng.standard_normal(d.shape).astype(d.numpy_data_type())
    print(f"input  {d.name:<12} {d.data_type!s:<14} {d.shape}")
for d in runner.getExecuteOutputs():
    outputs[d.name] = np.zeros(d.shape, d.numpy_data_type())
    print(f"output {d.name:<12} {d.data_type!s:<14} {d.shape}")
batch = runner.getExecuteInputs()[0].shape[0]

for _ in range(10):
    runner.execute(inputs, outputs)

latencies = []
start = time.perf_counter()
for _ in range(args.iterations):
    t0 = time.perf_counter()
    runner.execute(inputs, outputs)
    latencies.append((time.perf_counter() - t0) * 1000)
total = time.perf_counter() - start
lat = np.array(latencies)
print("blocking: min %.3f ms, mean %.3f ms, p99 %.3f ms, %.1f samples/s" % (
    lat.min(), lat.mean(), np.percentile(lat, 99), args.iterations * batch / total))

pending = deque()
start = time.perf_counter()
for _ in range(args.iterations):
    pending.append(runner.executeAsync(inputs))
    if len(pending) >= args.in_flight:
        pending.popleft().wait()
while pending:
    last = pending.popleft()
    last.wait()
total = time.perf_counter() - start
print("in flight: %.1f samples/s" % (args.iterations * batch / total))
for name, array in outputs.items():
    assert np.allclose(array, last[name].numpy())

info = {}
runner.getMonitoringStatisticsTotalCount(info)
assert info["request_monitoring_statistics_count"] == 10 + 2 * args.iterations
for quantile in (0.5, 0.9, 0.99):
    info = {}
    runner.getMonitoringStatisticsPercentile(info, quantile=quantile)
    print(quantile, {k.split("_monitoring")[0]: round(v, 1) for k, v in info.items()})
mean = runner.getMonitoringStatisticsMean({}, 0)
assert 0 < mean["computation_monitoring_statistics_mean_us"] <= (
    mean["request_monitoring_statistics_mean_us"])
print("Success: exiting")
sys.exit(0)
