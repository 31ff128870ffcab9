"""A thread copies large data if an event loop drives. Other requests go on meanwhile,
and no request writes into another's slot, however the large request ends.

Covers: engine/runner/channel_rings.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from engine import (
    Device,
    DeviceLost,
    DeviceManager,
    ModelRunner,
    ModelRunnerConfig,
    RunnerClosed,
)
from engine.devices.request import Request
from engine.errors import Cancelled, OutOfMemory
from engine.runner.replica_channel import ReplicaChannel
from engine.tensor import Tensor
from engine.transport import result_memory
from engine.transport.bulk_copy import COPIED_AT_ONCE, COPIER, BulkCopy
from engine.transport.result_memory import ResultMemory
from popef_io import DataType
from tests.engine.models import Port, write_model
from tests.support import WAIT, until

#: Elements of FP32 that a thread copies.
MANY = COPIED_AT_ONCE // 4 + 1000
COUNT = DataType.S64


@pytest.fixture
def device() -> Iterator[Device]:
    """A device that an event loop drives: the test."""
    with DeviceManager("cpu:37-37").get_device() as found:
        found.adopt()
        yield found


@pytest.fixture
def runner(device: Device, tmp_path: Path) -> Iterator[ModelRunner]:
    """y = x + 1, and a `z` of many elements, or few, that are all x[0]."""
    path = write_model(
        tmp_path / "m.popef",
        [
            helper.make_node("Add", ["x", "one"], ["y"]),
            helper.make_node("Slice", ["x", "start", "end"], ["first"]),
            helper.make_node("Expand", ["first", "count"], ["z"]),
        ],
        [Port("x", (-1,)), Port("count", (1,), COUNT)],
        [Port("y", (-1,)), Port("z", (-1,))],
        {
            "one": np.ones(1, np.float32),
            "start": np.zeros(1, np.int64),
            "end": np.ones(1, np.int64),
        },
    )
    config = ModelRunnerConfig(replica_to_device={0: device}, batching_dim=None)
    with ModelRunner(path, config) as found:
        yield found


@contextlib.contextmanager
def held_copies() -> Iterator[None]:
    """No copy goes on until the end of the block."""
    reached, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        go_on.wait(WAIT)

    COPIER.add(BulkCopy([], hold))
    assert reached.wait(WAIT)
    try:
        yield
    finally:
        go_on.set()


def submit(runner: ModelRunner, size: int, count: int, value: float = 1) -> Request:
    tensors = {
        "x": Tensor.from_numpy(np.full(size, value, np.float32)),
        "count": Tensor.from_numpy(np.array([count])),
    }
    return runner.submit(tensors)


def finish(device: Device, *requests: Request) -> None:
    until(lambda: [device.poll(), all(r.done for r in requests)][1])


def check(request: Request, size: int, count: int, value: float = 1) -> None:
    assert request.error is None
    y, z = (request.outputs[name].numpy() for name in "yz")
    assert y.shape == (size,)
    assert (y == value + 1).all()
    assert z.shape == (count,)
    assert (z == value).all()


def test_large_and_small_ones_keep_their_values(
    device: Device, runner: ModelRunner
) -> None:
    sizes = [(MANY, 1), (1, MANY), (3, 2), (MANY, MANY), (1, 1), (MANY, 1), (2, 9)]
    requests = [submit(runner, *size, i) for i, size in enumerate(sizes)]
    finish(device, *requests)
    for i, (request, size) in enumerate(zip(requests, sizes, strict=True)):
        check(request, *size, i)
    assert device.in_flight == 0
    assert runner.in_flight == 0


def test_those_behind_one_that_is_copied_in_keep_their_order(
    device: Device, runner: ModelRunner
) -> None:
    with held_copies():
        large, small = submit(runner, MANY, 1, 5), submit(runner, 1, 1, 6)
        device.poll()
        assert [large.slot, small.slot] == [-1, -1]
    finish(device, large, small)
    check(large, MANY, 1, 5)
    check(small, 1, 1, 6)


def test_one_that_is_given_up_while_it_is_copied_in_leaves_no_trace(
    device: Device, runner: ModelRunner
) -> None:
    with held_copies():
        large, small = submit(runner, MANY, 1), submit(runner, 1, 1, 6)
        large.cancel()
        assert isinstance(large.error, Cancelled)
        finish(device, small)
        check(small, 1, 1, 6)
    assert device.in_flight == 0
    again = submit(runner, MANY, MANY, 8)
    finish(device, again)
    check(again, MANY, MANY, 8)


def channel_of(device: Device) -> ReplicaChannel:
    (channel,) = device.channels.all
    assert isinstance(channel, ReplicaChannel)
    return channel


def leaving(device: Device, runner: ModelRunner) -> tuple[Request, Request]:
    """A request whose outputs are being copied, and one behind it that is finished."""
    large, small = submit(runner, 1, MANY, 5), submit(runner, 1, 1, 6)
    channel = channel_of(device)
    until(lambda: [device.poll(), len(channel.reader.waiting) == 2][1])
    assert [large.done, small.done] == [False, False]
    assert channel.in_flight == 2
    assert [request.number for request in channel.waiting] == [
        large.number,
        small.number,
    ]
    return large, small


def test_those_behind_one_that_is_copied_out_keep_their_order(
    device: Device, runner: ModelRunner
) -> None:
    with held_copies():
        large, small = leaving(device, runner)
    finish(device, large, small)
    check(large, 1, MANY, 5)
    check(small, 1, 1, 6)
    assert device.in_flight == 0


def test_one_that_is_given_up_while_it_is_copied_out_releases_its_slots(
    device: Device, runner: ModelRunner
) -> None:
    with held_copies():
        large, small = leaving(device, runner)
        large.cancel()
        assert isinstance(large.error, Cancelled)
        finish(device, small)
        check(small, 1, 1, 6)
    assert device.in_flight == 0
    for value in range(20):  # round the ring
        again = submit(runner, 1, MANY, value)
        finish(device, again)
        check(again, 1, MANY, value)


def test_a_lack_of_memory_for_a_copy_fails_one_request(
    device: Device, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise MemoryError

    if not result_memory.__file__.endswith(".py"):
        pytest.skip("compiled code calls its own functions straight")
    with monkeypatch.context() as patch:
        patch.setattr(ResultMemory, "array", none)
        large = submit(runner, 1, MANY)
        finish(device, large)
    assert isinstance(large.error, OutOfMemory)
    again = submit(runner, 1, MANY, 3)
    finish(device, again)
    check(again, 1, MANY, 3)


def kill(device: Device) -> None:
    assert device.pid is not None
    os.kill(device.pid, signal.SIGKILL)
    until(lambda: not device.check())


def test_a_device_that_dies_fails_what_is_copied_in(
    device: Device, runner: ModelRunner
) -> None:
    with held_copies():
        large, small = submit(runner, MANY, 1), submit(runner, 1, 1)
        kill(device)
    assert isinstance(large.error, DeviceLost)
    assert isinstance(small.error, DeviceLost)
    assert device.in_flight == 0


def test_a_device_that_dies_fails_what_is_copied_out(
    device: Device, runner: ModelRunner
) -> None:
    with held_copies():
        large, small = leaving(device, runner)
        kill(device)
    assert isinstance(large.error, DeviceLost)
    assert isinstance(small.error, DeviceLost)
    assert device.in_flight == 0


@pytest.mark.parametrize("way", ["in", "out"])
def test_closing_waits_for_no_copy(
    device: Device, runner: ModelRunner, way: str
) -> None:
    with held_copies():
        if way == "in":
            large, small = submit(runner, MANY, 1), submit(runner, 1, 1)
        else:
            large, small = leaving(device, runner)
        runner.close()
    assert isinstance(large.error, RunnerClosed)
    assert isinstance(small.error, RunnerClosed)
    assert device.in_flight == 0


def test_closing_in_the_middle_of_copies_unmaps_the_rings(
    device: Device, runner: ModelRunner
) -> None:
    channel = channel_of(device)
    view = channel._writer.channel.memory.view
    requests = [submit(runner, 4 * MANY, 1) for _ in range(3)]
    arriving = channel._writer._arriving
    assert arriving is not None
    until(lambda: arriving.copy.is_over or arriving.copy._at > 0)
    runner.close()
    assert all(request.done for request in requests)
    with pytest.raises(ValueError, match="released"):
        view[0]


@pytest.mark.parametrize(("size", "count"), [(MANY, 1), (1, MANY)])
def test_without_a_thread_the_event_loop_copies(
    device: Device,
    runner: ModelRunner,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    count: int,
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(COPIER, "_thread", None)
        short.setattr(threading.Thread, "start", no_thread)
        large = submit(runner, size, count, 5)
        finish(device, large)
    small = submit(runner, 1, 1, 6)
    finish(device, small)
    check(large, size, count, 5)
    check(small, 1, 1, 6)
