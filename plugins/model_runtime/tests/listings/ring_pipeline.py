#!/usr/bin/env python3
"""A pipeline of one's own in front of a model: a reader thread fills a ring, another
thread takes from it, and memory comes from a pool."""
import threading

import model_runtime
import numpy as np
from argparse import ArgumentParser

arguments = ArgumentParser()
arguments.add_argument("-p", dest="popef")
runner = model_runtime.ModelRunner(arguments.parse_args().popef)
desc = runner.getExecuteInputs()[0]
shape, dtype = desc.shape, desc.numpy_data_type()

pool = model_runtime.RingMemoryPool(blob_size=desc.size_in_bytes, num_blobs=8)
assert (pool.blobSize(), pool.numBlobs()) == (desc.size_in_bytes, 8)
waited = []
ring = model_runtime.SpscRingBuffer(4, "samples", waited.append, 50_000_000)
print(ring.label(), ring.numBuffers(), ring.getState("before"))
COUNT = 40


def read_samples():
    for number in range(COUNT):
        array = np.frombuffer(pool.getMemoryBlob(), dtype).reshape(shape)
        array[...] = number
        ring.write((number, array))


producer = threading.Thread(target=read_samples)
assert not ring.readAvailable()
producer.start()
zeros = np.zeros(shape, dtype)
for expected in range(COUNT):
    number, array = ring.readLock()
    assert ring.isValid() and number == expected
    output = runner.execute({"tensor_A": array, "tensor_B": zeros})["output"]
    assert np.allclose(output[0] * 2, number * np.array([1, 2, 3, 4])), output
    ring.readComplete()
producer.join()
assert all(buffer is ring for buffer in waited)

ring.write(("a", None))
ring.write(("b", None))
assert [ring.readLock()[0], ring.readLock()[0]] == ["a", "b"]
ring.readReset()
assert ring.readLock()[0] == "a"
ring.invalidate()
assert not ring.isValid()
ring.reset()
assert ring.isValid() and not ring.readAvailable()
print(ring.getState("after "))
print("Success: exiting")
