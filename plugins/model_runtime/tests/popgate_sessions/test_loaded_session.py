"""Sessions that are stopped, lose their device, or share one.

Covers: plugins/model_runtime/src/popgate_sessions/session_lease.py.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import build_popef
import numpy as np
import pytest

import engine
from engine import (
    DeadlineExceeded,
    Device,
    DeviceBusy,
    DeviceClosed,
    DeviceLost,
    DeviceManager,
    ModelRunner,
    ModelRunnerConfig,
    NoDeviceAvailable,
    QueueClosed,
    SessionClosed,
)
from popgate_sessions import LaunchPolicy, Session, SessionConfig, session_lease
from tests.engine import models

Array = np.ndarray[Any, Any]
ROWS = np.arange(16, dtype=np.float32).reshape(4, 4)


class Background:
    """A call in another thread, and what came of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def join(self) -> Background:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self


class Waiting:
    """A session in the middle of a run that waits for the rest of a batch."""

    def __init__(self, session: Session, timeout: float | None = None) -> None:
        self.queues = session.create_queue_manager()
        started = threading.Event()
        self.queues.input_queue("input").enqueue(ROWS[:1], started.set)
        self.run = Background(lambda: session.run_main_programs(timeout))
        assert started.wait(30)


class Computing:
    """A session in the middle of a graph that takes for ever."""

    def __init__(self, session: Session) -> None:
        started = threading.Event()

        def give(memory: Array) -> None:
            memory[...] = 1 << 40
            started.set()

        session.set_callback_for_anchor("h2d_count", give)
        session.set_callback_for_anchor("d2h_output", lambda memory: None)
        self.run = Background(session.run_main_programs)
        assert started.wait(30)


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.affine(tmp_path_factory.mktemp("m") / "m.popef", batch_size=4)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.slow(tmp_path_factory.mktemp("m") / "m.popef")


@pytest.fixture(scope="module")
def mortal_device() -> Iterator[Device]:
    with DeviceManager("cpu:20-20").get_device() as device:
        yield device


@pytest.fixture
def own_device(mortal_device: Device) -> Iterator[Device]:
    """A device that tests may kill: it is has been restarted after each test."""
    yield mortal_device
    if not mortal_device.check():
        mortal_device.recover()


@pytest.fixture
def session(affine: Path, shared_device: Device) -> Iterator[Session]:
    with Session(affine) as session:
        session.bind_to_device(shared_device)
        yield session


def check_runs(session: Session) -> None:
    queues = session.create_queue_manager()
    out = np.empty_like(ROWS)
    queues.input_queue("input").enqueue(ROWS)
    queues.output_queue("output").enqueue(out)
    assert session.run_main_programs(timeout=30)
    assert np.array_equal(out, ROWS * 2 + 1)


# -- stop


def test_stop_ends_a_run_that_waits(session: Session) -> None:
    waiting = Waiting(session)
    session.stop()
    assert waiting.run.join().result is False
    assert session.is_stopped
    assert "stopped" in repr(session)
    assert session.run_main_programs() is False
    assert session.run_programs([1]) is False
    with pytest.raises(QueueClosed):
        waiting.queues.input_queue("input").enqueue(ROWS)
    session.reload()
    assert not session.is_stopped
    # The same queues, empty again.
    out = np.empty_like(ROWS)
    waiting.queues.input_queue("input").enqueue(ROWS)
    waiting.queues.output_queue("output").enqueue(out)
    assert session.run_main_programs()
    assert np.array_equal(out, ROWS * 2 + 1)


def test_stop_ends_a_run_that_computes(slow: Path, own_device: Device) -> None:
    with Session(slow) as session:
        session.bind_to_device(own_device)
        computing = Computing(session)
        session.stop()
        assert computing.run.join().result is False
        session.reload()
        session.set_callback_for_anchor("h2d_count", lambda m: m.fill(1))
        assert session.run_main_programs(timeout=30)
    # The graph of the first run is not computing any more.
    assert own_device.ping().sessions == 0


def test_stop_in_a_callback(session: Session) -> None:
    session.set_callback_for_anchor("h2d_input", lambda memory: session.stop())
    session.set_callback_for_anchor("d2h_output", lambda memory: None)
    assert session.run_main_programs() is False
    session.reload()
    check_runs(session)


def test_close_while_it_runs(affine: Path, shared_device: Device) -> None:
    session = Session(affine)
    session.bind_to_device(shared_device)
    waiting = Waiting(session)
    session.close()
    session.close()
    assert waiting.run.join().result is False
    assert session.device is None


# -- too late


def test_a_run_may_have_a_timeout(session: Session) -> None:
    waiting = Waiting(session, timeout=0.3)
    assert isinstance(waiting.run.join().error, DeadlineExceeded)
    assert session.is_stopped
    session.reload()
    check_runs(session)


def test_a_graph_may_have_a_timeout(slow: Path, own_device: Device) -> None:
    with Session(slow) as session:
        session.bind_to_device(own_device)
        session.set_callback_for_anchor("h2d_count", lambda m: m.fill(1 << 40))
        session.set_callback_for_anchor("d2h_output", lambda m: None)
        with pytest.raises(DeadlineExceeded):
            session.run_main_programs(timeout=0.3)


# -- a run holds up nobody


def test_the_device_serves_others_while_a_run_waits(
    session: Session, affine: Path, shared_device: Device
) -> None:
    waiting = Waiting(session)
    assert shared_device.ping(timeout=30).sessions == 1
    config = ModelRunnerConfig(replica_to_device={0: shared_device})
    with ModelRunner(affine, config) as runner:
        result = runner.execute({"input": ROWS}, timeout=30)
        assert np.array_equal(result["output"], ROWS * 2 + 1)
    out = np.empty_like(ROWS)
    waiting.queues.output_queue("output").enqueue(out)
    waiting.queues.input_queue("input").enqueue(ROWS[1:])
    assert waiting.run.join().result is True
    assert np.array_equal(out, ROWS * 2 + 1)


# -- death


def kill(device: Device) -> None:
    assert device.pid is not None
    os.kill(device.pid, signal.SIGKILL)


def test_the_device_dies_while_a_run_waits(affine: Path, own_device: Device) -> None:
    with Session(affine) as session:
        session.bind_to_device(own_device)
        waiting = Waiting(session)
        kill(own_device)
        assert isinstance(waiting.run.join().error, DeviceLost)
        with pytest.raises(SessionClosed):
            session.run_main_programs()
        restarts = own_device.restarts
        session.reload()
        assert own_device.restarts == restarts + 1
        check_runs(session)


def test_the_device_dies_while_it_computes(slow: Path, own_device: Device) -> None:
    with Session(slow) as session:
        session.bind_to_device(own_device)
        computing = Computing(session)
        kill(own_device)
        assert isinstance(computing.run.join().error, DeviceLost)


def test_the_device_hangs(affine: Path, slow: Path, own_device: Device) -> None:
    own_device.ping_timeout = 1.0
    assert own_device.pid is not None
    os.kill(own_device.pid, signal.SIGSTOP)
    lost = pytest.raises(DeviceLost, match="has not answered a ping for 1 s")
    with Session(affine) as session, lost:
        session.bind_to_device(own_device)  # while it loads
    own_device.ping_timeout = 60.0
    own_device.recover()
    with Session(slow) as session:
        session.bind_to_device(own_device)
        own_device.ping_timeout = 1.0
        session.reload()
        computing = Computing(session)
        os.kill(own_device.pid, signal.SIGSTOP)
        error = computing.run.join().error
        assert isinstance(error, DeviceLost)
        assert "has not answered a ping for 1 s" in str(error)


def test_the_device_dies_between_two_runs(affine: Path, own_device: Device) -> None:
    with Session(affine) as session:
        session.bind_to_device(own_device)
        check_runs(session)
        kill(own_device)
        with pytest.raises(DeviceLost):
            session.run_main_programs()


def test_the_device_died_and_was_brought_back(affine: Path, own_device: Device) -> None:
    with Session(affine) as session:
        session.bind_to_device(own_device)
        kill(own_device)
        while own_device.check():
            pass
        own_device.recover()
        with pytest.raises(DeviceLost, match="has been restarted"):
            session.run_main_programs()
        session.reload()
        check_runs(session)


def test_the_device_is_closed_while_a_run_waits(affine: Path) -> None:
    device = DeviceManager("cpu:21-21").get_device()
    with Session(affine) as session:
        session.bind_to_device(device)
        waiting = Waiting(session)
        device.close()
        assert isinstance(waiting.run.join().error, DeviceClosed)


# -- sharing a device


class Counter:
    """A session of the accumulator; what it computes and saves is kept."""

    def __init__(self, path: Path, device: Device, total: int = 0) -> None:
        self.events: list[tuple[str, int]] = []
        self.session = Session(path)
        self.session.bind_to_device(device)
        for name in ("sum", "total"):
            self.session.set_callback_for_anchor(f"d2h_{name}", self._keep(name))
        self.session.set_callback_for_anchor("h2d_increment", lambda m: m.fill(1))
        self.session.set_callback_for_anchor("h2d_total", self._load)
        self.total = total

    def _keep(self, name: str) -> Callable[[Array], None]:
        def keep(memory: Array) -> None:
            self.events.append((name, int(memory[0, 0])))
            if name == "total":
                self.total = int(memory[0, 0])

        return keep

    def _load(self, memory: Array) -> None:
        memory.fill(self.total)
        self.events.append(("load", self.total))


@pytest.fixture(scope="module")
def accumulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_popef.build_accumulator(tmp_path_factory.mktemp("m"))


def test_two_sessions_share_a_device(accumulator: Path, shared_device: Device) -> None:
    """Load and save programs run where the device passes from one to the other."""
    one = Counter(accumulator, shared_device)
    two = Counter(accumulator, shared_device, total=100)
    with one.session, two.session:
        assert not one.session.is_active  # two came later
        for counter in (one, one, two, one):
            assert counter.session.run_main_programs()
        assert two.events == [("load", 100), ("sum", 101), ("total", 101)]
        assert one.events == [
            ("load", 0),
            ("sum", 1),
            ("sum", 2),
            ("total", 2),
            ("load", 2),
            ("sum", 3),
        ]
        with pytest.raises(SessionClosed, match="no longer loaded"):
            two.session.run_save_programs()
        one.session.unload_from_device()
        assert one.events[-1] == ("total", 3)
        assert one.session.device is None
        assert two.session.run_main_programs()
        assert two.events[-2:] == [("load", 101), ("sum", 102)]
        two.session.close()
        assert two.events[-1] == ("sum", 102)  # closing saves nothing
    assert shared_device.ping().sessions == 0


def test_outputs_that_have_nowhere_to_go_are_not_saved(
    accumulator: Path, shared_device: Device
) -> None:
    """Leaving the device does not wait for buffers that may never come."""
    with Session(accumulator) as session:
        session.bind_to_device(shared_device)
        session.set_callback_for_anchor("h2d_increment", lambda m: m.fill(1))
        queues = session.create_queue_manager()
        queues.input_queue("increment").enqueue(np.ones((3, 4), np.float32))
        queues.output_queue("sum").enqueue(np.empty((3, 4), np.float32))
        assert session.run_main_programs()
        session.unload_from_device()
        session.bind_to_device(shared_device)
        out = np.empty((3, 4), np.float32)
        queues.output_queue("total").enqueue(out)
        queues.output_queue("sum").enqueue(np.empty((3, 4), np.float32))
        queues.input_queue("increment").enqueue(np.ones((3, 4), np.float32))
        assert session.run_main_programs()
        session.unload_from_device()
        assert (out == 1).all()


def test_a_device_that_runs_programs_is_not_taken(
    session: Session,
    accumulator: Path,
    shared_device: Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_lease, "LEASE_TIMEOUT", 0.1)
    waiting = Waiting(session)
    with Session(accumulator) as other:
        with pytest.raises(DeviceBusy, match="stop it first"):
            other.bind_to_device(shared_device)
        assert other.device is None
        session.stop()
        waiting.run.join()
        other.bind_to_device(shared_device)
        assert other.is_active


def test_binding_to_another_device(
    affine: Path, shared_device: Device, own_device: Device
) -> None:
    with Session(affine) as session:
        for device in (shared_device, own_device):
            session.bind_to_device(device)
            assert session.device is device
            check_runs(session)
        assert shared_device.ping().sessions == 0
        assert own_device.ping().sessions == 1


def open_files(pid: int | str) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_nothing_is_left_behind(affine: Path, shared_device: Device) -> None:
    def use() -> tuple[int, int]:
        with Session(affine) as session:
            session.bind_to_device(shared_device)
            check_runs(session)
            session.reload()
            check_runs(session)
        assert shared_device.pid is not None
        return open_files("self"), open_files(shared_device.pid)

    before = use()
    for _ in range(5):
        after = use()
    # A control connection or two may be about to be closed.
    assert all(new <= old + 2 for old, new in zip(before, after, strict=True))


def test_without_a_free_device_the_reason_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPGATE_DEVICES", "cpu:61-61")
    path = models.affine(tmp_path / "m.popef")
    config = SessionConfig(LaunchPolicy.IMMEDIATE)
    with (
        DeviceManager().get_device(),
        pytest.raises(NoDeviceAvailable, match=r"set POPGATE_DEVICES=cpu:2$"),
    ):
        Session(path, config)


def test_the_engine_hands_the_names_on() -> None:
    names: dict[str, object] = {}
    exec("from engine import *", names)
    assert names["Session"] is Session
    assert vars(engine)["Session"] is Session
    assert "Session" in dir(engine)
    assert not hasattr(engine, "Sessions")
