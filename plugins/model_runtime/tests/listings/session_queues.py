#!/usr/bin/env python3
"""Low level, with queues, as a framework's executor uses it: one thread runs main
programs in a loop, requests of any number of rows are enqueued under a mutex, results
come by callbacks, and what stalls is flushed."""
import argparse
import threading
from concurrent.futures import Future

import model_runtime
import numpy as np

ROWS = (3, 1, 2, 7, 5, 6)


class Executor:
    def __init__(self, paths):
        config = model_runtime.SessionConfig()
        config.policy = model_runtime.LaunchPolicy.Immediate
        config.wait_config = model_runtime.DeviceWaitConfig(
            model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT, 60, 1)
        self.session = model_runtime.Session(model_runtime.PopefPaths(paths), config)
        self.mutex = threading.Lock()
        flow = self.session.model().metadata.programFlow()
        main = model_runtime.predicate_factory.anchor_callbacks.predProgramFlowMain(
            flow, model_runtime.AnchorCallbackPolicy.BIND_USER_CB,
            model_runtime.AnchorCallbackPolicy.BIND_EMPTY_CB)
        self.queues = self.session.createQueueManager(
            16, self.timed_out, 20_000_000, main, main)
        self.session.runLoadPrograms()
        self.stopping = threading.Event()
        self.flushed = 0
        self.thread = threading.Thread(target=self.loop)
        self.thread.start()

    def timed_out(self, ring):
        # A thread that waits for room may hold the mutex, and room comes from this one.
        if not self.mutex.acquire(blocking=False):
            return  # called again after the next timeout
        try:
            if not ring.readAvailable():
                self.flushed += 1
                self.queues.flushAll()
        finally:
            self.mutex.release()

    def loop(self):
        while not self.stopping.is_set():
            self.session.runMainPrograms()

    def run(self, inputs):
        """A future of the outputs. The arrays are kept until it is done."""
        future = Future()
        outputs = {}
        rows = next(iter(inputs.values())).shape[0]
        for name, queue in self.queues.outputs.items():
            shape = [rows, *queue.tensorInfo().shape()[1:]]
            outputs[name] = np.zeros(shape, queue.tensorInfo().numpyDType())
        left = [len(outputs)]

        def written():
            left[0] -= 1
            if not left[0]:
                future.set_result((inputs, outputs))

        with self.mutex:
            for name, array in inputs.items():
                self.queues.inputQueue(name).enqueue(array, array.nbytes)
            for name, array in outputs.items():
                self.queues.outputQueue(name).enqueue(array, array.nbytes, written)
        return future

    def close(self):
        self.stopping.set()
        self.queues.disconnectAll()
        self.thread.join(10)
        if self.thread.is_alive():
            self.session.stop()
            self.thread.join(10)
        assert not self.thread.is_alive()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+", required=True)
    args = parser.parse_args()
    executor = Executor(args.popef)
    weights = None
    for reader in executor.session.model().tensors:
        if reader.info.name() == "weights":
            weights = reader.data()
    futures = []
    for rows in ROWS * 3:
        a = np.random.randn(rows, 4).astype(np.float32)
        b = np.random.randn(rows, 4).astype(np.float32)
        futures.append(executor.run({"tensor_A": a, "tensor_B": b}))
    for future in futures:
        inputs, outputs = future.result(timeout=30)
        expected = inputs["tensor_A"] * weights + inputs["tensor_B"]
        assert np.allclose(outputs["output"], expected, atol=1e-5)
    # One row alone: the rest of the batch is flushed.
    one = np.ones((1, 4), np.float32)
    _, outputs = executor.run({"tensor_A": one, "tensor_B": one}).result(timeout=30)
    assert np.allclose(outputs["output"], weights + 1)
    print("flushed", executor.flushed, "times")
    assert executor.flushed
    executor.close()
    print("Success: exiting")


if __name__ == "__main__":
    main()
