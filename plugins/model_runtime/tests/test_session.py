"""The low level: sessions, queues, rings."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest

import model_runtime
import popef
from engine import DeviceManager, InvalidConfig, InvalidModel, UnknownAnchor
from model_runtime import AnchorCallbackPolicy, LaunchPolicy
from popgate_sessions import Session

Array = np.ndarray[Any, Any]


def rows(count: int, start: int = 0) -> Array:
    numbers = np.arange(start, start + count * 4, dtype=np.float32)
    return numbers.reshape(count, 4)


def test_batches_of_any_size_go_through_queues(simple: str) -> None:
    config = model_runtime.SessionConfig()
    config.policy = LaunchPolicy.Immediate
    session = model_runtime.Session([simple], config)
    queues = session.createQueueManager(16)
    events: list[str] = []
    sizes = (1, 4, 2, 5)
    sent, received = [], []
    for number, size in enumerate(sizes):
        a, b, out = rows(size, 100 * number), rows(size), np.zeros((size, 4), "f4")
        sent.append((a, b))
        received.append(out)
        queues.inputQueue("tensor_A").enqueue(
            a, a.nbytes, None, partial(events.append, f"read {number}")
        )
        queues.inputs["tensor_B"].enqueue(b)
        queues.outputQueue("output").enqueue(
            out, out.nbytes, partial(events.append, f"written {number}")
        )
    for _ in range(sum(sizes) // 3):
        assert session.runMainPrograms()
    weights = np.linspace(0.5, 2.0, 4, dtype=np.float32)
    for (a, b), out in zip(sent, received, strict=True):
        np.testing.assert_allclose(out, a * weights + b)
    assert sorted(events) == [
        f"{what} {n}" for what in ("read", "written") for n in range(4)
    ]


def test_serving_loop_that_flushes(simple: str) -> None:
    """The public client's way: a thread runs, a timeout flushes what is partial."""
    session = model_runtime.Session(simple)
    manager = model_runtime.DeviceManager()
    session.bindToDevice(manager.getDevice(session.model()))
    lock, written = threading.Lock(), threading.Event()

    def timed_out(ring: model_runtime.InputRingBuffer) -> None:
        assert isinstance(ring, model_runtime.InputRingBuffer)
        if not ring.readAvailable():
            with lock:
                queues.flushAll()

    queues = session.createQueueManager(8, timed_out, timedelta(milliseconds=20))

    def loop() -> None:
        while session.runMainPrograms():
            pass

    thread = threading.Thread(target=loop)
    a, b, out = rows(2), rows(2), np.zeros((2, 4), np.float32)
    with lock:
        for name, data in (("tensor_A", a), ("tensor_B", b)):
            slot = queues.inputQueue(name).enqueueLock()
            slot.data, slot.data_size = data, data.nbytes
            queues.inputQueue(name).enqueueComplete()
        free = queues.outputQueue("output").enqueueLock()
        free.data, free.data_size = out, out.nbytes
        free.writeCompleteCallback = written.set
        queues.outputQueue("output").enqueueComplete()
    thread.start()
    assert written.wait(30)
    session.stop()
    thread.join(30)
    assert not thread.is_alive()
    np.testing.assert_allclose(out[1], a[1] * np.linspace(0.5, 2, 4) + b[1])
    assert session.isStopped()
    # Whoever still enqueues is not held up, nor told.
    queue, room = queues.inputQueue("tensor_A"), queues.outputQueue("output")
    for _ in range(2 * queue.numBuffers()):
        slot = queue.enqueueLock()
        slot.data, slot.data_size = a, a.nbytes
        queue.enqueueComplete()
        queue.enqueue(a, a.nbytes)
        room.enqueue(out, out.nbytes)
        room.enqueueLock()
        room.enqueueComplete()
        queues.flushAll()
    session.reload()
    assert not session.isStopped()
    session.unloadFromDevice()


def test_program_numbers_and_sizes_of_numpy(simple: str) -> None:
    config = model_runtime.SessionConfig(policy=LaunchPolicy.Immediate)
    session = model_runtime.Session(simple, config=config)
    factory = model_runtime.predicate_factory.anchor_callbacks
    main = factory.predProgramIndexes(np.array([1]))
    queues = session.createQueueManager(np.int64(4), None, 0, main, main)
    assert sorted(queues.inputs) == ["tensor_A", "tensor_B"]
    assert queues.inputQueue("tensor_A").numBuffers() == 4
    memory = [rows(3), rows(3), rows(3)]
    every: list[Any] = [*queues.outputs.values(), *queues.inputs.values()]
    for queue, array in zip(every, memory, strict=True):
        queue.enqueue(array, array.nbytes)
    for wrong in (7, -1, 1 << 70):
        with pytest.raises(InvalidModel, match=f"no program {wrong}"):
            session.runPrograms([wrong])
    assert session.runPrograms(np.array([0, 1]))
    assert not session.isStopped()
    weights = np.linspace(0.5, 2.0, 4, dtype=np.float32)
    np.testing.assert_allclose(memory[0], rows(3) * weights + rows(3))


def test_timeouts_of_any_form(simple: str) -> None:
    with DeviceManager().get_device() as device, Session(simple) as session:
        session.bind_to_device(device)
        timeouts: list[Any] = [np.float32(30), 1e10, math.inf]
        for timeout in timeouts:
            assert session.run_load_programs(timeout)
        with pytest.raises(InvalidConfig, match="must be a number of seconds, got nan"):
            session.run_load_programs(math.nan)
        assert session.run_load_programs()


def test_what_a_session_tells(simple: str) -> None:
    session = model_runtime.Session(simple)
    names = [anchor.name() for anchor in session.getInputAnchors()]
    assert names == ["tensor_A", "tensor_B", "weights"]
    names = [anchor.name() for anchor in session.getUserInputAnchors()]
    assert names == ["tensor_A", "tensor_B"]
    for anchors in (session.getOutputAnchors(), session.getUserOutputAnchors()):
        assert [anchor.name() for anchor in anchors] == ["output"]
    assert session.model().metadata.programFlow().main() == [1]

    def only_a(anchor: popef.Anchor) -> AnchorCallbackPolicy:
        if anchor.name() == "tensor_A":
            return AnchorCallbackPolicy.BIND_USER_CB
        return AnchorCallbackPolicy.SKIP_CB

    queues = session.createQueueManager(input_predicate=only_a)
    assert list(queues.inputs) == ["tensor_A"]
    assert list(queues.outputs) == ["output"]
    with pytest.raises(UnknownAnchor, match="tensor_B"):
        queues.inputQueue("tensor_B")
    queue = queues.inputQueue("tensor_A")
    assert queue.tensorInfo().shape() == [3, 4]
    assert queue.numBuffers() == 8
    pool = model_runtime.allocateQueueStorage(queue, 2)
    assert (pool.blobSize(), pool.numBlobs()) == (48, 10)


def test_ring() -> None:
    calls: list[bool] = []

    def timed_out(ring: model_runtime.SpscRingBuffer[str]) -> None:
        calls.append(ring.readAvailable())
        ring.write("late")

    ring = model_runtime.SpscRingBuffer[str](
        2, "ring", timed_out, timedelta(milliseconds=1)
    )
    ring.write("a")
    ring.write("b")
    assert [ring.readLock(), ring.readLock()] == ["a", "b"]
    ring.readReset()
    assert ring.readLock() == "a"
    ring.readComplete()
    assert ring.readLock() == "b"
    assert ring.readLock() == "late"
    assert calls == [False]
    assert (ring.numBuffers(), ring.label()) == (2, "ring")
    assert ring.getState("at ").startswith("at ring")
    ring.invalidate()
    assert not ring.isValid()
    ring.reset()
    assert ring.isValid()
    assert not ring.readAvailable()


def test_rings_of_batches_are_filled_in_place() -> None:
    ring = model_runtime.InputRingBuffer(2, "batches")
    batch, called = rows(3), []
    slot = ring.writeLock()
    slot.data, slot.data_size = batch, batch.nbytes
    slot.readStartCallback = lambda: called.append("start")
    ring.writeComplete()
    other = model_runtime.InputData()
    other.data, other.data_size = batch, 16
    ring.write(other)
    other.data_size = 32  # a ring copies what is written
    first, second = ring.readLock(), ring.readLock()
    assert np.shares_memory(np.frombuffer(first.data, np.float32), batch)
    assert first.readStartCallback
    first.readStartCallback()
    assert called == ["start"]
    assert (first.data_size, second.data_size) == (48, 16)
    room = model_runtime.OutputRingBuffer(1, "room").writeLock()
    assert isinstance(room, model_runtime.OutputData)


def test_pool_of_memory() -> None:
    pool = model_runtime.RingMemoryPool(8, 2)
    first, second, third = (pool.getMemoryBlob() for _ in range(3))
    first[:] = b"12345678"
    assert bytes(third) == b"12345678"
    assert bytes(second) == bytes(8)


def test_tensor_memory() -> None:
    memory = model_runtime.TensorMemory(16)
    view, const = memory.getView(), memory.getConstView()
    np.frombuffer(memory, np.float32)[:] = 1.5
    assert memory.data_size_bytes == view.data_size_bytes == 16
    assert np.frombuffer(const, np.float32).tolist() == [1.5] * 4
    view[:] = 0
    assert memory.tobytes() == const.tobytes() == bytes(16)
    assert model_runtime.TensorMemoryView().data_size_bytes == 0
    array = np.zeros((2, 4), np.float32)
    half = model_runtime.TensorMemoryView(array, 16)
    assert np.shares_memory(half, array)
    assert half.data_size_bytes == 16
    with pytest.raises(ValueError, match="read-only"):
        const[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        model_runtime.TensorMemoryView(b"1234")
    for size in (33, -1):
        with pytest.raises(ValueError, match=str(size)):
            model_runtime.ConstTensorMemoryView(array, size)
    assert model_runtime.TensorMemory().data_size_bytes == 0


def test_requests_in_tensor_memory(simple: str) -> None:
    runner = model_runtime.ModelRunner(simple)
    inputs = model_runtime.InputMemoryView()
    for desc in runner.getExecuteInputs():
        memory = model_runtime.TensorMemory(desc.size_in_bytes)
        np.frombuffer(memory, desc.numpy_data_type())[:] = 2
        inputs[desc.name] = memory.getConstView()
    outputs = model_runtime.OutputMemoryView()
    memory = model_runtime.TensorMemory(48)
    outputs["output"] = memory.getView()
    runner.executeAsync(inputs, outputs).wait()
    assert np.frombuffer(memory, np.float32)[:4].tolist() == [3, 4, 5, 6]


def test_arguments_of_queues_are_checked(simple: str) -> None:
    wrong: Any = 3
    for timeout_cb, timeout_ns in ((wrong, 0), (print, -1)):
        with pytest.raises((TypeError, InvalidConfig), match="timeout_"):
            model_runtime.SpscRingBuffer(2, "ring", timeout_cb, timeout_ns)
        session = model_runtime.Session(simple)
        with pytest.raises((TypeError, InvalidConfig), match="timeout_"):
            session.createQueueManager(8, timeout_cb, timeout_ns)
    with pytest.raises(TypeError, match="expected LaunchPolicy, got int"):
        model_runtime.SessionConfig(policy=wrong)


STOPS = """
import sys
import model_runtime

config = model_runtime.SessionConfig(policy=model_runtime.LaunchPolicy.Immediate)
session = model_runtime.Session(sys.argv[1], config)
for anchor in (*session.getInputAnchors(), *session.getOutputAnchors()):
    if anchor.name() != "weights":
        session.setCallbackForAnchor(anchor.handle(), lambda memory: session.stop())
for _ in range(3):
    print(session.runMainPrograms(), session.isStopped())
    session.reload()
"""


def test_stopping_a_run_is_no_accident(simple: str) -> None:
    """Neither the program nor its device has anything to complain of."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", STOPS, simple],
        env={**os.environ, "POPGATE_POOL": f"stops-{os.getpid()}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "False True\n" * 3


def test_queues_and_anchors_by_name_and_by_handle(simple: str) -> None:
    """Model Runtime User Guide 10.2.3: the name of the tensor or stream."""
    session = model_runtime.Session(simple)
    session.bindToDevice(model_runtime.DeviceManager().getDevice(1))
    queues = session.createQueueManager(4)
    for anchor in session.getUserInputAnchors():
        queue = queues.inputQueue(anchor.name())
        assert queues.inputQueue(anchor.handle()) is queue
        assert queues.inputQueue(anchor.handle().encode()) is queue
        assert queues.inputs[anchor.name()] is queue
        in_bytes: Any = anchor.name().encode()  # the types say `str`
        assert queues.inputs[in_bytes] is queue
    (output,) = session.getUserOutputAnchors()
    queue_of_output = queues.outputQueue(output.handle())
    assert queues.outputQueue(output.name()) is queue_of_output
    seen: list[float] = []
    for anchor in (*session.getUserInputAnchors(), output):
        session.setCallbackForAnchor(anchor.name(), partial(_fill_or_keep, seen))
    session.runMainPrograms()
    assert seen[-1] == 1.5
    policy = AnchorCallbackPolicy.SKIP_CB
    factory = model_runtime.predicate_factory
    ways: list[Any] = [output, output.name(), output.handle()]
    for given in (*ways, output.handle().encode()):
        chosen = factory.AnchorWithPolicy(given, policy)
        predicate = factory.anchor_callbacks.predAnchorsPolicies([chosen])
        assert predicate(output) is policy


def _fill_or_keep(seen: list[float], memory: Array) -> None:
    if memory.flags.writeable:
        memory[:] = 1
    seen.append(float(memory.flat[0]))


def test_durations_of_rings_are_seconds_where_they_are_floats() -> None:
    asked: list[float] = []
    ring: Any = None

    def late(_: Any) -> None:
        asked.append(1.0)
        ring.write("x")

    for duration in (0.001, timedelta(milliseconds=1), 1_000_000):
        ring = model_runtime.SpscRingBuffer(2, b"ring", late, duration)
        assert ring.readLock() == "x"
        assert ring.getState(b"state of ").startswith("state of ring")
    assert len(asked) == 3
