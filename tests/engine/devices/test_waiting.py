"""Threads that wait for results: whether they look for them or sleep, they get them."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from engine import (
    Device,
    DeviceClosed,
    DeviceLost,
    DeviceManager,
    ModelRunner,
    ModelRunnerConfig,
    Tensor,
)
from engine.devices import waiting
from engine.devices.request import Request
from engine.transport.link import ALONE, BACKPRESSURE, PARKED, Link
from engine.transport.ring_buffer import CONTROL_SIZE, RingCounters
from tests.engine import models
from tests.interrupts import interrupt
from tests.support import FOR_EVER, WAIT, until


def row(value: float) -> dict[str, np.ndarray]:
    return {"input": np.full((1, 4), value, np.float32)}


@pytest.fixture(params=["0", "300"])
def device(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Device]:
    """One that does not look for requests, nor its clients for results; one that does,
    where there are cores for it."""
    monkeypatch.setenv("POPGATE_SPIN_US", request.param)
    with DeviceManager("cpu:37-37").get_device() as device:
        yield device


@pytest.fixture
def runner(tmp_path: Path, device: Device) -> Iterator[ModelRunner]:
    config = ModelRunnerConfig(replica_to_device={0: device})
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
        yield runner


def one_by_one(runner: ModelRunner, first: int, count: int) -> bool:
    values = range(first, first + count)
    return all(
        (runner.execute(row(value))["output"] == 2 * value + 1).all()
        for value in values
    )


def test_one_by_one_and_several_in_flight(runner: ModelRunner) -> None:
    runner.execute_async(row(0)).wait(math.nan)
    assert runner.execute_async(row(0)).wait(1e300)
    for first in range(0, 600, 200):
        assert one_by_one(runner, first, 200)
        results = [runner.execute_async(row(value)) for value in range(12)]
        for value, result in reversed(list(enumerate(results))):
            assert (result["output"] == 2 * value + 1).all()
    assert runner.in_flight == 0


def test_several_threads_at_once(runner: ModelRunner) -> None:
    with ThreadPoolExecutor(4) as pool:
        firsts = range(0, 800, 100)
        assert all(pool.map(lambda first: one_by_one(runner, first, 100), firsts))


def test_other_threads_run_while_one_waits(runner: ModelRunner) -> None:
    counted, over = [0], threading.Event()

    def count() -> None:
        while not over.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    while counted[0] < 1000 or not one_by_one(runner, 0, 10):
        pass
    over.set()
    thread.join(30)
    assert counted[0] >= 1000


def test_control_c_leaves_no_driver_behind(runner: ModelRunner) -> None:
    runner.execute(row(0))
    number = 1
    while interrupt(
        lambda: runner.execute(row(1)), number, "engine/devices/waiting.py"
    ):
        result = runner.execute_async(row(number))
        assert result.wait(WAIT), f"nobody drives after point {number}"
        assert (result["output"] == 2 * number + 1).all()
        number += 1


def test_a_device_that_dies_while_threads_wait(
    runner: ModelRunner, device: Device
) -> None:
    assert one_by_one(runner, 0, 100)
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(one_by_one, runner, 0, 1 << 40) for _ in range(2)]
        while runner.in_flight == 0:
            os.sched_yield()
        assert device.pid is not None
        os.kill(device.pid, 9)
        for end in ends:
            assert isinstance(end.exception(60), DeviceLost)


class HeldPoll:
    """Holds the thread that drives: it does not see what it waits for."""

    def __init__(self) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()

    def poll(self) -> SimpleNamespace:
        return SimpleNamespace(register=lambda *_: None, poll=self._poll)

    def _poll(self, _: float) -> list[tuple[int, int]]:
        self.reached.set()
        assert self.let_go.wait(WAIT)
        return []

    @contextlib.contextmanager
    def waiting_for(self, request: Request) -> Iterator[None]:
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(request.wait)
            try:
                assert self.reached.wait(WAIT)
                yield
            finally:
                self.let_go.set()
            assert waits.result(WAIT)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldPoll:
    if not waiting.__file__.endswith(".py"):
        pytest.skip("compiled code has its own `select`")
    found = HeldPoll()
    stands_in = SimpleNamespace(poll=found.poll, POLLIN=select.POLLIN)
    monkeypatch.setattr(waiting, "select", stands_in)
    return found


def test_a_device_that_is_closed_while_a_thread_waits(
    tmp_path: Path, device: Device, held: HeldPoll
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: device})
    with ModelRunner(models.slow(tmp_path / "m.popef"), config) as runner:
        request = runner.submit({"count": Tensor.from_numpy(np.array(FOR_EVER))})
        with held.waiting_for(request):
            device.close()
    assert isinstance(request.error, DeviceClosed)
    assert device.poll() == 0


def test_an_event_loop_leaves_the_wake_up_to_a_thread_that_waits(
    runner: ModelRunner, device: Device, held: HeldPoll
) -> None:
    request = runner.submit({"input": Tensor.from_numpy(row(1)["input"])})
    with held.waiting_for(request):
        until(lambda: [device.poll(), request.done][1])
        # The device signals after it has put the result into the ring.
        until(lambda: select.select([device.fileno()], [], [], 0)[0])
    assert request.error is None
    assert not select.select([device.fileno()], [], [], 0)[0]


def test_a_device_is_told_who_asks_for_one_at_a_time() -> None:
    mine = Link.create()
    its = Link.attach(os.dup(mine.memory.fd))
    assert not its.words[ALONE]
    mine.words[ALONE] = 1
    assert its.words[ALONE]
    assert not its.words[PARKED]
    assert not its.words[BACKPRESSURE]
    mine.words[ALONE] = 0
    assert not its.words[ALONE]
    its.close()
    mine.close()


def test_a_look_at_a_ring_changes_nothing() -> None:
    memory = memoryview(bytearray(CONTROL_SIZE))
    producer, consumer = RingCounters(memory, 4), RingCounters(memory, 4)
    assert not consumer.has_news
    for number in range(10):
        producer.write_complete()
        assert consumer.has_news
        assert consumer.try_read_lock() == number % 4
        assert not consumer.has_news
        consumer.read_complete()
