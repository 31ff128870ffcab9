#!/usr/bin/env python3
"""A deployment backend: one view that is used again and again, batches that are
multiples of the model's, a hundred requests of which only the last is waited for."""
import argparse
from datetime import timedelta

import model_runtime
import numpy as np
import popef


class Net:
    def __init__(self, paths):
        config = model_runtime.ModelRunnerConfig()
        config.device_wait_config = model_runtime.DeviceWaitConfig(
            model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT,
            timeout=timedelta(seconds=600), sleepTime=timedelta(seconds=1))
        self.runner = model_runtime.ModelRunner(
            model_runtime.PopefPaths(paths), config=config)
        self.inputs = self.runner.getExecuteInputs()
        self.outputs = self.runner.getExecuteOutputs()
        self.input_view = model_runtime.InputMemoryView()
        self.output_view = model_runtime.OutputMemoryView()
        self.results = {}

    def reshape(self, batch):
        for desc in self.outputs:
            shape = desc.shape
            shape[0] = batch
            dtype = popef.popefTypeToNumpyDType(desc.data_type)
            self.results[desc.name] = np.zeros(shape, dtype)
            self.output_view[desc.name] = self.results[desc.name]

    def __call__(self, data):
        for desc in self.inputs:
            # A temporary: the view keeps it.
            self.input_view[desc.name] = data[desc.name].astype(
                popef.popefTypeToNumpyDType(desc.data_type))
        self.runner.execute(self.input_view, self.output_view)
        return self.results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+", required=True)
    args = parser.parse_args()
    net = Net(args.popef)
    print("inputs:", net.inputs, "outputs:", net.outputs)
    weights = model_weights(args.popef)
    for times in (1, 2, 5):
        data = {}
        for desc in net.inputs:
            shape = desc.shape
            shape[0] *= times
            data[desc.name] = np.random.randn(*shape)
        batch = data["tensor_A"].shape[0]
        net.reshape(batch)
        result = net(data)["output"]
        expected = data["tensor_A"] * weights + data["tensor_B"]
        assert result.shape == expected.shape
        assert np.allclose(result, expected, atol=1e-5)

    futures = []
    views = []
    for number in range(100):
        view = model_runtime.InputMemoryView()
        for desc in net.inputs:
            view[desc.name] = np.full(desc.shape, number, desc.numpy_data_type())
        views.append(view)
        futures.append(net.runner.executeAsync(view))
    futures[-1].wait()
    last = np.frombuffer(futures[-1]["output"], np.float32)
    assert np.allclose(last, (99 * weights + 99 + np.zeros((3, 1))).ravel())
    print("Success: exiting")


def model_weights(paths):
    reader = popef.Reader()
    for path in paths:
        reader.parseFile(path)
    (weights,) = [t for t in reader.tensors() if t.info.name() == "weights"]
    return weights.data()


if __name__ == "__main__":
    main()
