#!/usr/bin/env python3
"""Queues by hand: memory from pools, slots that are locked and completed, sizes of
rings and kinds of callbacks for each anchor, a feed of the file that the user replaces.
"""
import argparse
import threading

import model_runtime
import numpy as np

Policy = model_runtime.AnchorCallbackPolicy
Usage = model_runtime.PopefDataUsagePolicy
anchor_callbacks = model_runtime.predicate_factory.anchor_callbacks
popef_data_usage = model_runtime.predicate_factory.popef_data_usage


def session_of(paths, own_feed):
    config = model_runtime.SessionConfig()
    config.policy = model_runtime.LaunchPolicy.Immediate
    config.wait_config = model_runtime.DeviceWaitConfig(
        model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT, 60, 1)
    if own_feed:
        config.pred_tensor_data = lambda anchor: (
            Usage.USE_USER_DATA if anchor.name() == "offset"
            else Usage.USE_POPEF_DATA_IF_ANY)
    else:
        config.pred_tensor_data = model_runtime.null_popef_data_usage_predicate
    return model_runtime.Session(model_runtime.PopefPaths(paths), config)


def fill(queue, pool, value, events):
    """A batch in the next blob of the pool."""
    blob = np.frombuffer(pool.getMemoryBlob(), queue.tensorInfo().numpyDType())
    blob[...] = value
    slot = queue.enqueueLock()
    slot.data = blob
    slot.data_size = blob.nbytes
    slot.readStartCallback = lambda: events.append(("start", value))
    slot.readCompleteCallback = lambda: events.append(("complete", value))
    queue.enqueueComplete()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+", required=True)
    args = parser.parse_args()

    # The feed is the file's: its next tensor in each run.
    session = session_of(args.popef, own_feed=False)
    assert [a.name() for a in session.getUserInputAnchors()] == ["tensor_A"]
    assert {a.name() for a in session.getInputAnchors()} == {"tensor_A", "offset"}
    model = session.model()
    multiplier = model_runtime.ring_size_multiplier_factory
    sizes = multiplier.ringSizeMultForMainProgs(model, 2, 1)
    queues = session.createQueueManager(sizes)
    source, target = queues.inputQueue("tensor_A"), queues.outputQueue("output")
    assert source.numBuffers() == 2 * 3
    pool = model_runtime.allocateQueueStorage(source, 1)
    assert pool.blobSize() == source.tensorInfo().sizeInBytes()
    assert pool.numBlobs() >= source.numBuffers() + 1
    events, filled = [], []
    results = [np.zeros((3, 4), np.float32) for _ in range(3)]
    for number, result in enumerate(results):
        fill(source, pool, number, events)
        target.enqueue(result, result.nbytes, lambda: filled.append(1))
    for _ in results:
        session.runMainPrograms()
    assert len(filled) == 3
    for number, result in enumerate(results):
        assert np.all(result == number + 100 * number)
    assert [e for e in events if e[0] == "complete"] == [
        ("complete", n) for n in range(3)]
    session.stop()
    queues.resetAll()
    del session

    # The user takes the place of the feed; the output goes nowhere.
    session = session_of(args.popef, own_feed=True)
    assert {a.name() for a in session.getUserInputAnchors()} == {"tensor_A", "offset"}
    flow = session.model().metadata.programFlow()
    offset, = [a for a in session.getInputAnchors() if a.name() == "offset"]
    with_policy = model_runtime.predicate_factory.AnchorWithPolicy(
        offset, Policy.BIND_EMPTY_CB)
    only_main = anchor_callbacks.predProgramFlowMain(flow)
    both = anchor_callbacks.andBind(
        Policy.BIND_USER_CB, Policy.BIND_EMPTY_CB, only_main,
        anchor_callbacks.predNonScalarType())
    assert both(offset) == Policy.BIND_USER_CB
    but_offset = anchor_callbacks.predAnchorsPolicies(
        [with_policy], Policy.BIND_USER_CB)
    assert but_offset(offset) == Policy.BIND_EMPTY_CB
    queues = session.createQueueManager(4, None, 0, both, both)
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    result = np.zeros_like(data)
    done = threading.Event()
    queues.inputQueue("tensor_A").enqueue(data, data.nbytes)
    queues.inputQueue("offset").enqueue(10 * data, data.nbytes)
    queues.outputQueue("output").enqueue(result, result.nbytes, done.set)
    session.runMainPrograms()
    assert done.is_set()
    assert np.array_equal(result, 11 * data)

    queues = session.createQueueManager(4, None, 0, but_offset, but_offset)
    assert set(queues.inputs) == {"tensor_A"}
    queues.inputQueue("tensor_A").enqueue(data, data.nbytes)
    queues.outputQueue("output").enqueue(result, result.nbytes)
    session.runMainPrograms()
    assert np.array_equal(result, data), result
    print("Success: exiting")


if __name__ == "__main__":
    main()
