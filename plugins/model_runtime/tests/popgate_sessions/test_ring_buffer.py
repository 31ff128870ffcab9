"""The ring of objects: full, empty, held, put back, invalidated."""

from __future__ import annotations

import threading

import pytest

from engine.errors import DeviceLost, QueueClosed
from popgate_sessions import SpscRingBuffer


def test_write_lock_repeated_gives_the_same_buffer() -> None:
    ring: SpscRingBuffer[list[int]] = SpscRingBuffer(2, "r", make=list)
    first = ring.write_lock()
    assert ring.write_lock() is first
    ring.write_complete()
    second = ring.write_lock()
    assert second is not first
    ring.write_complete()
    with pytest.raises(QueueClosed):
        ring.write_complete()


def test_completing_what_is_not_locked() -> None:
    ring: SpscRingBuffer[object] = SpscRingBuffer(2, "r", make=object)
    with pytest.raises(QueueClosed, match="r: read_complete without read_lock"):
        ring.read_complete()
    ring.invalidate()  # from now on nothing has to be true of what a lock returned
    for _ in range(3):
        ring.read_lock()
        ring.read_complete()
        ring.write_lock()
        ring.write_complete()
    ring.reset()
    assert not ring.read_available()


def test_several_buffers_may_be_read_locked() -> None:
    ring: SpscRingBuffer[object] = SpscRingBuffer(3, "r", make=object)
    for value in ("a", "b", "c"):
        ring.write(value)
    assert ring.try_write_lock() is None
    assert [ring.read_lock(), ring.read_lock()] == ["a", "b"]
    ring.read_reset()
    assert ring.read_lock() == "a"
    ring.read_complete()
    assert ring.try_write_lock() is not None
    assert ring.read_available()


def test_a_blocked_writer_goes_on_when_a_buffer_is_released() -> None:
    ring: SpscRingBuffer[object] = SpscRingBuffer(1, "r", make=object)
    ring.write("first")
    written = threading.Event()

    def write() -> None:
        ring.write("second")
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert ring.read_lock() == "first"
    assert not written.is_set()
    ring.read_complete()
    assert written.wait(10)
    thread.join()
    assert ring.read_lock() == "second"


def test_a_waiting_reader_calls_the_timeout_callback_until_data_comes() -> None:
    calls = []

    def on_timeout(ring: SpscRingBuffer[object]) -> None:
        calls.append(ring.label)
        if len(calls) == 3:
            ring.write("late")

    ring: SpscRingBuffer[object] = SpscRingBuffer(
        1, "label", on_timeout, 1_000_000, make=object
    )
    assert ring.read_lock() == "late"
    assert calls == ["label"] * 3


def test_none_is_a_value_like_any_other() -> None:
    ring: SpscRingBuffer[object] = SpscRingBuffer(2, "r", make=lambda: None)
    ring.write("a")
    ring.write(None)
    assert [ring.read_lock(), ring.read_lock()] == ["a", None]


def test_invalidate_wakes_both_sides() -> None:
    ring: SpscRingBuffer[object] = SpscRingBuffer(1, "r", make=object)
    reader = threading.Thread(target=ring.read_lock)
    reader.start()
    ring.invalidate()
    reader.join(10)
    assert not reader.is_alive()
    assert not ring.is_valid()
    ring.write("ignored")
    assert "invalid" in ring.state("x: ")
    ring.reset()
    assert ring.is_valid()
    assert not ring.read_available()
    assert ring.num_buffers == 1


def test_a_wait_ends_where_it_is_no_use() -> None:
    ring = SpscRingBuffer[list[int]](2, make=list)

    def alive() -> None:
        raise DeviceLost("gone")

    with pytest.raises(DeviceLost):
        ring.read_lock(alive)
    ring.write([7])
    assert ring.read_lock(alive) == [7]  # `alive` is not called if there is data


def test_whether_a_write_would_wait() -> None:
    ring = SpscRingBuffer[list[int]](1, make=list)
    assert ring.write_available()
    ring.write_lock()
    assert ring.write_available()  # repeating gives the same buffer
    ring.write_complete()
    assert not ring.write_available()
    ring.read_lock()
    ring.read_complete()
    assert ring.write_available()
