"""Callbacks of users that fail: the run ends with what they raised, and no later one
hangs or lacks anything.

Covers: plugins/model_runtime/src/popgate_sessions/bindings.py,
plugins/model_runtime/src/popgate_session_worker/device_session.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    Device,
    InvalidConfig,
    ModelRunner,
    ModelRunnerConfig,
    Request,
    Tensor,
)
from popgate_sessions import (
    AnchorCallbackPolicy,
    Session,
    SessionConfig,
    SpscRingBuffer,
)
from popgate_sessions.queues import InputQueue
from tests.engine import models

Array = np.ndarray[Any, Any]
BATCH = 4
TURNS = 6  # more than the device writes ahead of the host
LIMIT = 60.0


def values(start: int) -> Array:
    return np.full((BATCH, 4), start, np.float32)


def failing(times: int = 1 << 30) -> Callable[..., None]:
    """A callback that raises so many times."""
    left = [times]

    def fail(*arguments: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise LookupError("not today")

    return fail


@pytest.fixture(params=["unlimited", "0"])
def session(
    tmp_path: Path, shared_device: Device, request: pytest.FixtureRequest
) -> Iterator[Session]:
    """output = input * 2 + 1."""
    path = models.affine(tmp_path / "m.popef", batch_size=BATCH)
    with Session(path, SessionConfig(max_look_ahead=request.param)) as session:
        session.bind_to_device(shared_device)
        yield session


def runs_well(session: Session) -> None:
    """Twice, so that what was prefetched is in it too."""
    queues = session.create_queue_manager()
    outputs = []
    for number in range(2):
        queues.inputs["input"].enqueue(values(number))
        outputs.append(np.zeros((BATCH, 4), np.float32))
        queues.outputs["output"].enqueue(outputs[-1])
    for number in range(2):
        assert session.run_main_programs(LIMIT)
        assert np.array_equal(outputs[number], values(number) * 2 + 1)


def run_until_it_fails(session: Session) -> None:
    while session.run_main_programs(LIMIT):
        pass


@pytest.mark.parametrize("which", ["start", "complete"])
@pytest.mark.parametrize("output", ["queue", "dummy"])
def test_an_input_queues_callbacks(session: Session, which: str, output: str) -> None:
    def dummy(anchor: object) -> AnchorCallbackPolicy:
        wanted = output == "queue"
        return AnchorCallbackPolicy(int(not wanted))

    for _ in range(TURNS):
        queues = session.create_queue_manager(output_predicate=dummy)
        source = queues.inputs["input"]
        for _ in range(3):
            if which == "start":
                source.enqueue(values(1), failing(1), None)
            else:
                source.enqueue(values(1), None, failing(1))
            for sink in queues.outputs.values():
                sink.enqueue(np.zeros((BATCH, 4), np.float32))
        for _ in range(3):
            # It may have been prefetched, and is told later.
            with pytest.raises(LookupError):
                run_until_it_fails(session)
    runs_well(session)


@pytest.mark.parametrize("output", ["queue", "dummy"])
def test_a_batch_that_was_taken_ahead(session: Session, output: str) -> None:
    """Its callback may be due when the device says that the programs have ended."""
    for _ in range(TURNS):
        queues = session.create_queue_manager(
            output_predicate=lambda anchor: AnchorCallbackPolicy(output == "dummy")
        )
        for callback in (None, None, failing(), None):
            queues.inputs["input"].enqueue(values(1), None, callback)
            for sink in queues.outputs.values():
                sink.enqueue(np.zeros((BATCH, 4), np.float32))
        assert session.run_main_programs(LIMIT)
        assert session.run_main_programs(LIMIT)
        with pytest.raises(LookupError):
            session.run_main_programs(LIMIT)
        assert session.run_main_programs(LIMIT)
    runs_well(session)


def test_an_output_queues_callback(session: Session) -> None:
    for _ in range(TURNS):
        queues = session.create_queue_manager()
        queues.inputs["input"].enqueue(values(1))
        queues.outputs["output"].enqueue(np.zeros((BATCH, 4), np.float32), failing())
        with pytest.raises(LookupError):
            session.run_main_programs(LIMIT)
    runs_well(session)


def test_a_timeout_callback(session: Session) -> None:
    for callback, kind in ((failing(), LookupError), (lambda: None, TypeError)):
        session.create_queue_manager(timeout_cb=callback, timeout_ns=1_000_000)  # type: ignore[arg-type]
        for _ in range(TURNS):
            with pytest.raises(kind):
                session.run_main_programs(LIMIT)
    runs_well(session)


@pytest.mark.parametrize("side", ["input", "output"])
def test_callbacks_on_anchors(session: Session, side: str) -> None:
    wrong: list[tuple[Any, type[BaseException]]] = [
        (failing(), LookupError),
        (lambda: None, TypeError),
    ]
    for callback, kind in wrong:
        fits: Any = lambda memory: None  # noqa: E731
        by_side = {"input": fits, "output": fits, side: callback}
        session.set_user_input_handler(lambda info: by_side["input"])  # noqa: B023
        session.set_user_output_handler(lambda info: by_side["output"])  # noqa: B023
        for _ in range(TURNS):
            with pytest.raises(kind):
                session.run_main_programs(LIMIT)
    runs_well(session)


def test_factories_that_fail(session: Session) -> None:
    for factory, kind in ((failing(), LookupError), (lambda info: 3, InvalidConfig)):
        with pytest.raises(kind):
            session.set_user_input_handler(factory)  # type: ignore[arg-type]
        with pytest.raises(kind):
            session.set_user_output_handler(factory)  # type: ignore[arg-type]
    with pytest.raises(LookupError):
        session.create_queue_manager(input_predicate=failing())  # type: ignore[arg-type]
    with pytest.raises(LookupError):
        session.create_queue_manager(failing())  # type: ignore[arg-type]
    runs_well(session)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_is_no_error_stops_the_session(
    session: Session, kind: type[BaseException]
) -> None:
    def leave(memory: Array) -> None:
        raise kind

    session.set_user_input_handler(lambda info: leave)
    session.set_user_output_handler(lambda info: lambda memory: None)
    with pytest.raises(kind):
        session.run_main_programs(LIMIT)
    session.reload()
    runs_well(session)


def test_what_is_taken_ahead_is_not_lost(session: Session) -> None:
    """As the callback that fails is told before anything of its batch is taken."""
    queue: InputQueue = session.create_queue_manager().inputs["input"]
    queue.enqueue(values(7), failing(1))
    with pytest.raises(LookupError):
        queue.try_take_batch()
    parts = queue.try_take_batch()
    assert parts is not None
    assert b"".join(parts) == values(7).tobytes()


def test_a_rings_callbacks() -> None:
    with pytest.raises(LookupError):
        SpscRingBuffer(2, make=failing())
    ring: SpscRingBuffer[list[int]] = SpscRingBuffer(
        2, timeout_cb=failing(2), timeout_ns=1, make=list
    )
    for _ in range(2):
        with pytest.raises(LookupError):
            ring.read_lock()
    ring.write([1])
    assert ring.read_lock() == [1]


def test_who_is_told_that_a_request_is_done(
    tmp_path: Path, shared_device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    """What fails there is logged, and the results that came with it are not lost."""
    path = models.affine(tmp_path / "m.popef")
    config = ModelRunnerConfig(replica_to_device={0: shared_device}, batching_dim=0)
    with ModelRunner(path, config) as runner:
        tensors = {"input": Tensor.from_numpy(values(2))}
        with shared_device.lock:  # so that all come at once
            requests: list[Request] = [
                runner.submit(tensors, on_done=failing()) for _ in range(8)
            ]
        for request in requests:
            assert request.wait(LIMIT)
            assert request.error is None
        assert runner.drain(LIMIT)
        assert not runner.in_flight
    assert caplog.text.count("LookupError: not today") == 8
