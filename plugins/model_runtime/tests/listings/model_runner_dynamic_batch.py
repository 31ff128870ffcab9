#!/usr/bin/env python3
"""Requests of any number of rows, and requests that are whole batches."""
import argparse

import model_runtime
import numpy as np


def runner_of(paths, **options):
    config = model_runtime.ModelRunnerConfig()
    config.device_wait_config = model_runtime.DeviceWaitConfig(
        model_runtime.DeviceWaitStrategy.WAIT_FOREVER, sleepTime=1)
    for name, value in options.items():
        assert hasattr(config, name)
        setattr(config, name, value)
    return model_runtime.ModelRunner(model_runtime.PopefPaths(paths), config=config)


def request(rows):
    a = np.random.randn(rows, 4).astype(np.float32)
    b = np.random.randn(rows, 4).astype(np.float32)
    return {"tensor_A": a, "tensor_B": b}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+", required=True)
    args = parser.parse_args()

    runner = runner_of(args.popef, batching_dim=0, timeout_ns=300_000)
    one = np.ones((1, 4), np.float32)
    weights = runner.execute({"tensor_A": one, "tensor_B": 0 * one})["output"][0]
    for rows in (1, 4, 7, 3, 12):
        data = request(rows)
        result = runner.execute(data)["output"]
        expected = data["tensor_A"] * weights + data["tensor_B"]
        assert result.shape == (rows, 4)
        assert np.allclose(result, expected, atol=1e-5)

    sent = [request(rows) for rows in (1, 4, 7, 2, 2, 5)]
    outputs = [{"output": np.zeros_like(data["tensor_A"])} for data in sent]
    futures = [runner.executeAsync(data, out) for data, out in zip(sent, outputs)]
    for data, out, future in zip(sent, outputs, futures):
        future.wait()
        expected = data["tensor_A"] * weights + data["tensor_B"]
        assert np.allclose(out["output"], expected, atol=1e-5)
    del runner, future, futures

    runner = runner_of(args.popef)
    for times in (1, 2, 4):
        data = request(3 * times)
        result = runner.execute(data)["output"]
        expected = data["tensor_A"] * weights + data["tensor_B"]
        assert np.allclose(result, expected, atol=1e-5)
    try:
        runner.execute(request(4))
    except Exception as error:
        print("Not a multiple of the batch size:", error)
    else:
        raise AssertionError("4 is no multiple of 3")
    print("Success: exiting")


if __name__ == "__main__":
    main()
