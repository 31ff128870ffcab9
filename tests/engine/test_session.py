"""The low-level interface: sessions and queues that regroup and split batches."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from engine import (
    Device,
    InvalidInput,
    LaunchPolicy,
    QueueClosed,
    Session,
    SessionClosed,
    SessionConfig,
    UnknownAnchor,
)
from tests.engine import models


def values(
    count: int, start: int = 0
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.arange(start, start + count * 4, dtype=np.float32).reshape(count, 4)


@pytest.mark.parametrize(
    "sizes", [[4], [1, 1, 1, 1], [3, 5], [8], [1, 6, 1], [2, 7, 3]]
)
def test_user_batches_are_regrouped_and_split(
    tmp_path: Path, shared_device: Device, sizes: list[int]
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    with Session(path) as session:
        session.bind_to_device(shared_device)
        queues = session.create_queue_manager(num_buffers=16)
        events: list[str] = []
        sent, outputs = [], []
        for number, size in enumerate(sizes):
            data, out = (
                values(size, start=100 * number),
                np.empty((size, 4), np.float32),
            )
            sent.append(data)
            outputs.append(out)
            queues.input_queue("input").enqueue(
                data.data,
                lambda n=number: events.append(f"start {n}"),  # type: ignore[misc]
                lambda n=number: events.append(f"read {n}"),  # type: ignore[misc]
            )
            queues.output_queue("output").enqueue(
                out.data,
                lambda n=number: events.append(f"written {n}"),  # type: ignore[misc]
            )
        for _ in range(sum(sizes) // 4):
            assert session.run_main_programs()
        assert sum(sizes) % 4 == 0
        for data, out in zip(sent, outputs, strict=True):
            assert np.array_equal(out, data * 2 + 1)
        for kind in ("start", "read", "written"):
            order = [int(e.split()[1]) for e in events if e.startswith(kind)]
            assert order == list(range(len(sizes)))


def test_flush_completes_a_partial_batch(tmp_path: Path, shared_device: Device) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    with Session(path) as session:
        session.bind_to_device(shared_device)
        queues = session.create_queue_manager()
        data, out = values(1), np.empty((1, 4), np.float32)
        queues.input_queue("input").enqueue(data.data)
        queues.output_queue("output").enqueue(out.data)
        queues.flush_all()
        assert session.run_main_programs()
        assert np.array_equal(out, data * 2 + 1)


def test_a_missing_input_calls_the_timeout_callback(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    with Session(path) as session:
        session.bind_to_device(shared_device)
        queues = session.create_queue_manager(
            timeout_cb=lambda ring: queues.flush_all(), timeout_ns=1_000_000
        )
        out = np.empty((2, 4), np.float32)
        queues.input_queue("input").enqueue(values(2).data)
        queues.output_queue("output").enqueue(out.data)
        assert session.run_main_programs()
        assert np.array_equal(out, values(2) * 2 + 1)


def test_stop_ends_a_waiting_run_and_reload_begins_again(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    with Session(path) as session:
        session.bind_to_device(shared_device)
        queues = session.create_queue_manager()
        results: list[bool] = []
        thread = threading.Thread(
            target=lambda: results.append(session.run_main_programs())
        )
        thread.start()
        session.stop()
        thread.join(30)
        assert results == [False]
        assert session.is_stopped
        with pytest.raises(SessionClosed):
            session.run_main_programs()
        with pytest.raises(QueueClosed):
            queues.input_queue("input").enqueue(values(1).data)
        session.reload()
        out = np.empty((4, 4), np.float32)
        queues.input_queue("input").enqueue(values(4).data)
        queues.output_queue("output").enqueue(out.data)
        assert session.run_main_programs()
        assert np.array_equal(out, values(4) * 2 + 1)


def test_misuse_is_named(tmp_path: Path, shared_device: Device) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    with Session(path) as session:
        with pytest.raises(SessionClosed):
            session.run_main_programs()
        queues = session.create_queue_manager()
        with pytest.raises(UnknownAnchor, match="nope"):
            queues.input_queue("nope")
        with pytest.raises(UnknownAnchor, match="nope"):
            queues.output_queue("nope")
        with pytest.raises(InvalidInput, match="multiple of 16"):
            queues.input_queue("input").enqueue(b"12345")
        with pytest.raises(InvalidInput, match="writable"):
            queues.output_queue("output").enqueue(bytes(16))
        assert [a.name for a in session.input_anchors] == ["input"]
        assert [a.name for a in session.output_anchors] == ["output"]


def test_an_immediate_session_attaches_a_device_itself(tmp_path: Path) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    config = SessionConfig(policy=LaunchPolicy.IMMEDIATE)
    with Session(path, config) as session:
        assert session.device is not None
        queues = session.create_queue_manager(predicate=lambda a: a.name != "output")
        assert list(queues.inputs) == ["input"]
        assert not queues.outputs
        queues.input_queue("input").enqueue(values(4).data)
        assert session.run_main_programs()
        device = session.device
    assert device.state.value == "closed"
