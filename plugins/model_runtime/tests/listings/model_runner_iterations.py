#!/usr/bin/env python3
"""A model of several device iterations: requests that are less than a run of it."""
import argparse
from datetime import timedelta

import model_runtime
import numpy as np


def runner_of(paths, **options):
    config = model_runtime.ModelRunnerConfig()
    config.device_wait_config = model_runtime.DeviceWaitConfig(
        model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT, 60, 1)
    for name, value in options.items():
        setattr(config, name, value)
    return model_runtime.ModelRunner(model_runtime.PopefPaths(paths), config=config)


def check(runner, batches):
    data = np.random.randn(3 * batches, 4).astype(np.float32)
    result = runner.execute({"input": data})["output"]
    assert np.allclose(result, data * 2 + 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+", required=True)
    args = parser.parse_args()
    # Not enough for a run: the rest is flushed after the timeout.
    runner = runner_of(args.popef, timeout_ns=timedelta(milliseconds=20),
                       max_look_ahead="0")
    for batches in (1, 4, 3, 8, 5):
        check(runner, batches)
    del runner

    # Enough requests in flight to fill runs; nothing is ever flushed.
    runner = runner_of(args.popef, timeout_ns=0)
    inputs = [np.full((3, 4), n, np.float32) for n in range(12)]
    futures = [runner.executeAsync({"input": data}) for data in inputs]
    for data, future in zip(inputs, futures):
        future.wait()
        assert np.array_equal(future["output"].numpy(), data * 2 + 1)
    del runner, future, futures

    # The application says what is flushed.
    asked = []
    zeros = model_runtime.InputMemoryView()
    zeros["input"] = np.zeros((9, 4), np.float32)
    outputs = model_runtime.OutputMemoryView()
    outputs["output"] = np.zeros((9, 4), np.float32)

    def flush(tensor_id, inputs, outs):
        asked.append(tensor_id)
        inputs.update(zeros)
        outs.update(outputs)

    # An answer that takes longer is asked for again.
    runner = runner_of(args.popef, timeout_ns=1_000_000_000, flush_callback=flush)
    check(runner, 1)
    assert asked == ["input"], asked
    print("flush_callback was called for", asked)
    print("Success: exiting")


if __name__ == "__main__":
    main()
