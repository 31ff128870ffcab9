"""Queues of sessions: batches are regrouped and split, flushed, given back.

Covers: plugins/model_runtime/src/popgate_sessions/queue_manager.py,
plugins/model_runtime/src/popgate_sessions/session_link.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build_popef
import numpy as np
import pytest

from engine import (
    Device,
    InvalidConfig,
    InvalidInput,
    QueueClosed,
    QueueFull,
    UnknownAnchor,
)
from popef_io import Anchor, DataType, TensorInfo, TensorType
from popgate_sessions import (
    AnchorCallbackPolicy,
    QueueManager,
    Session,
    allocate_queue_storage,
    ring_size_for_main_programs,
)
from popgate_sessions.queues import InputQueue
from tests.engine import models

Array = np.ndarray[Any, Any]
BATCH = 4


def values(count: int, start: int = 0) -> Array:
    return np.arange(start, start + count * 4, dtype=np.float32).reshape(count, 4)


def alive() -> None:
    """Nothing ends a wait of these tests."""


@pytest.fixture(scope="module")
def session(
    tmp_path_factory: pytest.TempPathFactory, shared_device: Device
) -> Iterator[Session]:
    """output = input * 2 + 1, compiled for four rows."""
    path = models.affine(tmp_path_factory.mktemp("m") / "m.popef", batch_size=BATCH)
    with Session(path) as session:
        session.bind_to_device(shared_device)
        yield session


def enqueue(queues: QueueManager, data: Array) -> Array:
    out = np.full_like(data, -1)
    queues.input_queue("input").enqueue(data)
    queues.output_queue("output").enqueue(out)
    return out


@pytest.mark.parametrize(
    "sizes", [[4], [1, 1, 1, 1], [3, 5], [8], [1, 6, 1], [2, 7, 3], [11, 1]]
)
def test_user_batches_are_regrouped_and_split(
    session: Session, sizes: list[int]
) -> None:
    queues = session.create_queue_manager(num_buffers=16)
    events: list[tuple[str, int]] = []
    sent, outputs = [], []
    for number, size in enumerate(sizes):
        data = values(size, start=100 * number)
        out = np.empty_like(data)
        sent.append(data)
        outputs.append(out)

        def told(what: str, number: int = number) -> Any:
            return lambda: events.append((what, number))

        queues.input_queue("input").enqueue(data, told("start"), told("read"))
        queues.output_queue("output").enqueue(out, told("written"))
    for _ in range(sum(sizes) // BATCH):
        assert session.run_main_programs()
    for data, out in zip(sent, outputs, strict=True):
        assert np.array_equal(out, data * 2 + 1)
    for kind in ("start", "read", "written"):
        order = [number for what, number in events if what == kind]
        assert order == list(range(len(sizes)))


def test_lock_and_complete(session: Session) -> None:
    queues = session.create_queue_manager()
    data, out = values(4), np.empty((4, 4), np.float32)
    queue = queues.input_queue("h2d_input")  # by the handle of the stream
    slot = queue.enqueue_lock()
    assert queue.enqueue_lock() is slot
    slot.data, slot.data_size = data.data.cast("B"), data.nbytes
    queue.enqueue_complete()
    room = queues.output_queue("output").enqueue_lock()
    room.data, room.data_size = out.data.cast("B"), out.nbytes
    queues.output_queue("output").enqueue_complete()
    assert session.run_main_programs()
    assert np.array_equal(out, data * 2 + 1)


def test_flush_completes_a_partial_batch_with_zeros(session: Session) -> None:
    queues = session.create_queue_manager()
    out = enqueue(queues, values(1))
    queues.flush_all()
    assert session.run_main_programs()
    assert np.array_equal(out, values(1) * 2 + 1)
    # Nothing is left over: the next batch begins with its own first row.
    out = enqueue(queues, values(4, 50))
    assert session.run_main_programs()
    assert np.array_equal(out, values(4, 50) * 2 + 1)


def test_flush_without_a_partial_batch_is_a_whole_dummy(session: Session) -> None:
    queues = session.create_queue_manager()
    queues.flush_all()
    out = enqueue(queues, values(4))
    assert session.run_main_programs()
    assert (out == -1).all()  # the dummy's results went nowhere
    assert session.run_main_programs()
    assert np.array_equal(out, values(4) * 2 + 1)


def test_a_missing_input_calls_the_timeout_callback(session: Session) -> None:
    seen: list[bool] = []

    def flush(ring: Any) -> None:
        seen.append(ring.read_available())
        queues.flush_all()

    queues = session.create_queue_manager(timeout_cb=flush, timeout_ns=1_000_000)
    out = enqueue(queues, values(2))
    assert session.run_main_programs()
    assert np.array_equal(out, values(2) * 2 + 1)
    assert seen == [False]


def test_a_callback_that_would_wait_for_itself_is_told(session: Session) -> None:
    queues = session.create_queue_manager(
        2, timeout_cb=lambda ring: queues.flush_all(), timeout_ns=1_000_000
    )
    for _ in range(2):  # the output queue is full, no input comes
        queues.output_queue("output").enqueue(np.empty((4, 4), np.float32))
    with pytest.raises(QueueFull, match="output"):
        session.run_main_programs()


def test_disconnected_queues_let_a_run_end_with_dummies(session: Session) -> None:
    queues = session.create_queue_manager()
    results: list[bool] = []
    started = threading.Event()
    out = np.full((4, 4), -1, np.float32)
    queues.input_queue("input").enqueue(values(2), started.set)
    queues.output_queue("output").enqueue(out)
    thread = threading.Thread(
        target=lambda: results.append(session.run_main_programs())
    )
    thread.start()
    assert started.wait(30)  # it has two rows, and waits for two more
    queues.disconnect_all()
    thread.join(30)
    assert results == [False]
    assert (out == -1).all()
    with pytest.raises(QueueClosed):
        queues.input_queue("input").enqueue(values(1))
    # Not stopped: with the queues reset, it goes on.
    queues.reset_all()
    out = enqueue(queues, values(4))
    assert session.run_main_programs()
    assert np.array_equal(out, values(4) * 2 + 1)


def test_memory_that_backs_a_queue(session: Session) -> None:
    queues = session.create_queue_manager(3)
    pool = allocate_queue_storage(queues.input_queue("input"), extra_buffers=2)
    assert (pool.blob_size, pool.num_blobs) == (64, 5)


def test_ring_sizes_by_program(session: Session) -> None:
    multiplier = ring_size_for_main_programs(session.model, 3)
    queues = session.create_queue_manager(multiplier)
    assert queues.input_queue("input").num_buffers == 3 * BATCH
    queues = session.create_queue_manager(lambda anchor: 1)
    assert queues.output_queue("output").num_buffers == BATCH


def test_misuse_is_named(session: Session) -> None:
    queues = session.create_queue_manager()
    with pytest.raises(UnknownAnchor, match="nope"):
        queues.input_queue("nope")
    with pytest.raises(UnknownAnchor, match="nope"):
        queues.output_queue("nope")
    with pytest.raises(InvalidInput, match="multiple of 16"):
        queues.input_queue("input").enqueue(b"12345")
    with pytest.raises(InvalidInput, match="writable"):
        queues.output_queue("output").enqueue(bytes(16))
    with pytest.raises(InvalidConfig):
        session.create_queue_manager(0)


def test_a_new_manager_takes_the_place_of_the_last(session: Session) -> None:
    old = session.create_queue_manager()
    new = session.create_queue_manager(
        output_predicate=lambda anchor: AnchorCallbackPolicy.BIND_EMPTY_CB
    )
    assert not new.outputs
    with pytest.raises(QueueClosed):
        old.input_queue("input").enqueue(values(4))
    new.input_queue("input").enqueue(values(4))
    assert session.run_main_programs()


def test_a_free_batch_is_taken_as_it_is(tmp_path: Path, shared_device: Device) -> None:
    path = models.affine(tmp_path / "m.popef")
    with Session(path) as session:
        session.bind_to_device(shared_device)
        queues = session.create_queue_manager()
        outs = [enqueue(queues, values(n, 10 * n)) for n in (5, 1, 700)]
        for _ in outs:
            assert session.run_main_programs()
        for n, out in zip((5, 1, 700), outs, strict=True):
            assert np.array_equal(out, values(n, 10 * n) * 2 + 1)
        queues.flush_all()  # one row
        assert session.run_main_programs()


def test_a_repeat_takes_a_batch_for_each_iteration(
    tmp_path: Path, shared_device: Device
) -> None:
    """Device iterations: one run of the main program takes four batches of three."""
    rows = build_popef.BATCH * build_popef.ITERATIONS
    with Session(build_popef.build_iterations(tmp_path)) as session:
        session.bind_to_device(shared_device)
        queues = session.create_queue_manager(16)
        outs = [enqueue(queues, values(n, n)) for n in (7, 1, 2 * rows - 8)]
        assert session.run_main_programs()
        assert np.array_equal(outs[0], values(7, 7) * 2 + 1)
        assert session.run_main_programs()
        assert np.array_equal(outs[2], values(2 * rows - 8, 2 * rows - 8) * 2 + 1)


def test_batches_that_were_put_back_are_taken_again() -> None:
    anchor = Anchor("x", "h2d_x", TensorInfo((2,), DataType.U8), TensorType.INPUT, (1,))
    queue = InputQueue(anchor, 4)
    events: list[str] = []
    for number, data in enumerate((b"abc", b"def")):
        queue.enqueue(
            data,
            lambda n=number: events.append(f"start {n}"),  # type: ignore[misc]
            lambda n=number: events.append(f"read {n}"),  # type: ignore[misc]
        )

    def take() -> bytes:
        return b"".join(queue.take_batch(alive) or [])

    assert [take(), take(), take()] == [b"ab", b"cd", b"ef"]
    queue.batch_done()
    assert events == ["start 0", "start 1"]
    queue.put_back()
    assert [take(), take()] == [b"cd", b"ef"]
    assert queue.try_take_batch() is None
    queue.batch_done()
    queue.batch_done()
    assert events == ["start 0", "start 1", "start 1", "read 0", "read 1"]


def test_requests_from_several_threads(session: Session) -> None:
    """A serving loop as public clients have it: every row comes back to its request."""
    lock = threading.Lock()
    left = threading.Semaphore(0)

    def flush(ring: Any) -> None:
        if not ring.read_available():
            with lock:
                queues.flush_all()

    queues = session.create_queue_manager(64, flush, 5_000_000)

    def serve() -> None:
        while session.run_main_programs():
            pass

    def send(seed: int, results: list[tuple[Array, Array]]) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            data = rng.random((int(rng.integers(1, 3 * BATCH)), 4), np.float32)
            out = np.empty_like(data)
            results.append((data, out))
            with lock:
                queues.input_queue("input").enqueue(data)
                queues.output_queue("output").enqueue(out, left.release)

    server = threading.Thread(target=serve)
    server.start()
    results: list[list[tuple[Array, Array]]] = [[], [], []]
    clients = [
        threading.Thread(target=send, args=(seed, mine))
        for seed, mine in enumerate(results)
    ]
    for client in clients:
        client.start()
    for _ in range(3 * 60):
        assert left.acquire(timeout=30)
    queues.disconnect_all()
    for thread in (*clients, server):
        thread.join(30)
        assert not thread.is_alive()
    for data, out in (pair for mine in results for pair in mine):
        assert np.array_equal(out, data * 2 + 1)
