#!/usr/bin/env python3
"""An executor of the kind that frameworks have: one thread runs, callers get promises."""
import threading
from argparse import ArgumentParser
from concurrent.futures import Future, ThreadPoolExecutor

import model_runtime
import numpy as np
from model_runtime.predicate_factory import anchor_callbacks


class QueueExecutor:
    def __init__(self, path, num_buffers=10, timeout_ms=2.0):
        config = model_runtime.SessionConfig()
        config.policy = model_runtime.LaunchPolicy.Immediate
        config.wait_config = model_runtime.DeviceWaitConfig(
            model_runtime.DeviceWaitStrategy.WAIT_FOREVER)
        self.session = model_runtime.Session([path], config)
        flow = self.session.model().metadata.programFlow()
        main = anchor_callbacks.predProgramFlowMain(
            flow, model_runtime.AnchorCallbackPolicy.BIND_USER_CB,
            model_runtime.AnchorCallbackPolicy.BIND_EMPTY_CB)
        self.mutex = threading.Lock()
        self.queues = self.session.createQueueManager(
            num_buffers, self.on_timeout, int(timeout_ms * 1e6), main, main)
        self.stop = False
        self.session.runLoadPrograms()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stop:
            self.session.runMainPrograms()

    def on_timeout(self, buffer):
        # A thread that waits for room may hold the mutex, and room comes from this one.
        if not self.mutex.acquire(blocking=False):
            return  # called again after the next timeout
        try:
            if not buffer.readAvailable():
                self.queues.flushAll()
        finally:
            self.mutex.release()

    def __call__(self, **inputs):
        promise = Future()
        rows = len(next(iter(inputs.values())))
        results, missing = {}, len(self.queues.outputs)

        def written():
            nonlocal missing
            missing -= 1
            if not missing:
                promise.set_result(results)

        with self.mutex:
            for name, queue in self.queues.outputs.items():
                info = queue.tensorInfo()
                out = results[name] = np.empty(
                    [rows] + info.shape()[1:], info.numpyDType())
                queue.enqueue(out, out.nbytes, written)
            for name, array in inputs.items():
                self.queues.inputQueue(name).enqueue(array, array.nbytes)
        promise.inputs = inputs  # until it is done
        return promise

    def close(self):
        self.stop = True
        self.queues.disconnectAll()
        self.thread.join(timeout=10)
        if self.thread.is_alive():
            self.session.stop()


parser = ArgumentParser()
parser.add_argument("-p", "--popef", required=True)
executor = QueueExecutor(parser.parse_args().popef)
weights = np.linspace(0.5, 2.0, 4, dtype=np.float32)


def client(number):
    rng = np.random.default_rng(number)
    for _ in range(25):
        rows = int(rng.integers(1, 6))
        a, b = rng.standard_normal((2, rows, 4)).astype(np.float32)
        result = executor(tensor_A=a, tensor_B=b).result(timeout=30)
        np.testing.assert_allclose(result["output"], a * weights + b, rtol=1e-5)
    return number


with ThreadPoolExecutor(4) as pool:
    assert list(pool.map(client, range(4))) == [0, 1, 2, 3]
executor.close()
print("Success: exiting")
