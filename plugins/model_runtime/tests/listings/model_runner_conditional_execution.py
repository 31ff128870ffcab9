#!/usr/bin/env python3
"""Runs the models of a fused graph one at a time: only the anchors of the chosen one
are given."""
import argparse
from datetime import timedelta

import model_runtime
import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+", required=True)
    args = parser.parse_args()
    config = model_runtime.ModelRunnerConfig()
    config.validate_io_params = False
    config.timeout_ns = timedelta(milliseconds=500)
    config.device_wait_config = model_runtime.DeviceWaitConfig(
        timedelta(seconds=60), timedelta(seconds=1))
    runner = model_runtime.ModelRunner(model_runtime.PopefPaths(args.popef),
                                       config=config)
    shapes = {desc.name: desc.shape for desc in runner.getExecuteInputs()}
    a = np.random.randn(*shapes["sum/a"]).astype(np.float32)
    b = np.random.randn(*shapes["sum/b"]).astype(np.float32)
    x = np.random.randn(*shapes["scale/input"]).astype(np.float32)

    out = {"sum/output": np.zeros_like(a)}
    for _ in range(3):
        runner.execute({"index": np.array([0]), "sum/a": a, "sum/b": b}, out)
        assert np.allclose(out["sum/output"], a + b)
        result = runner.execute({"index": np.array([1]), "scale/input": x})
        ratio = result["scale/output"] / x
        assert np.allclose(ratio[0], ratio[1], rtol=1e-4)

    try:
        runner.execute({"index": np.array([1]), "sum/a": a, "sum/b": b}, out)
    except Exception as error:
        print("Inputs of another model:", error)
    print("Success: exiting")


if __name__ == "__main__":
    main()
