"""Records never overlap, whatever the sizes and the order of things."""

from __future__ import annotations

import random

import pytest

from engine.transport.record_pool import RecordPool
from engine.transport.ring_buffer import CONTROL_SIZE, RingCounters


@pytest.mark.parametrize("seed", range(20))
def test_records_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    slots, capacity = rng.choice([1, 2, 7, 32]), rng.choice([64, 256, 8000, 24 << 20])
    memory = memoryview(bytearray(CONTROL_SIZE))
    producer, consumer = RingCounters(memory, slots), RingCounters(memory, slots)
    pool = RecordPool(producer, capacity, rng.choice([0, capacity // 2]))
    live: list[tuple[int, int]] = []
    placed = 0
    for _ in range(3000):
        if live and rng.random() < 0.45:
            consumer.try_read_lock()
            consumer.read_complete()
            live.pop(0)
            continue
        nbytes = rng.choice([0, 1, 8, 40, capacity // 3, capacity])
        if producer.try_write_lock() < 0:
            continue
        offset = pool.place(nbytes)
        if offset < 0:
            assert live or nbytes > capacity
            continue
        assert 0 <= offset <= offset + nbytes <= capacity
        for start, size in live:
            assert offset + nbytes <= start or start + size <= offset
        pool.take(producer.write_slot(0), offset, nbytes)
        producer.write_complete()
        live.append((offset, nbytes))
        placed += 1
    assert placed > 100


def test_an_empty_pool_starts_over() -> None:
    memory = memoryview(bytearray(CONTROL_SIZE))
    producer, consumer = RingCounters(memory, 8), RingCounters(memory, 8)
    pool = RecordPool(producer, 1024)
    for _ in range(100):
        assert pool.place(1000) == 0
        pool.take(producer.write_slot(0), 0, 1000)
        producer.write_complete()
        assert pool.place(100) == -1
        consumer.try_read_lock()
        consumer.read_complete()
    assert pool.place(1025) == -1


def test_what_is_larger_than_usual_gives_its_memory_back() -> None:
    memory = memoryview(bytearray(CONTROL_SIZE))
    producer, consumer = RingCounters(memory, 8), RingCounters(memory, 8)
    given: list[tuple[int, int]] = []
    pool = RecordPool(producer, 10_000, 1_000, lambda *part: given.append(part))

    def put(nbytes: int) -> int:
        offset = pool.place(nbytes)
        assert offset >= 0
        pool.take(producer.write_slot(0), offset, nbytes)
        producer.write_complete()
        return offset

    def release(count: int) -> None:
        for _ in range(count):
            consumer.try_read_lock()
        consumer.read_complete(count)

    # A ring that is never empty goes round in the usual memory.
    offsets = {put(304) for _ in range(2)}
    for _ in range(20):
        offsets.add(put(304))
        release(1)
    assert max(offsets) + 304 <= 1_000
    release(2)
    put(304)
    assert put(6_000) == 304  # and beside it
    release(2)
    # More of the same size: kept. The usual size: given back, once.
    assert put(6_000) == 0
    release(1)
    assert given == []
    for _ in range(2):
        assert put(8) == 0
        release(1)
    ((start, end),) = given
    assert start == 1_000
    assert 6_000 <= end <= 7_000


@pytest.mark.parametrize("in_use", [1, 3, 8])
def test_a_pool_that_is_never_empty_stays_in_memory_it_has_touched(in_use: int) -> None:
    memory = memoryview(bytearray(CONTROL_SIZE))
    producer, consumer = RingCounters(memory, 64), RingCounters(memory, 64)
    size, reached = 4 << 20, 0
    pool = RecordPool(producer, 256 << 20)
    for number in range(500):
        offset = pool.place(size)
        assert offset >= 0
        pool.take(producer.write_slot(0), offset, size)
        producer.write_complete()
        reached = max(reached, offset + size)
        if number >= in_use:
            consumer.try_read_lock()
            consumer.read_complete()
    assert reached <= (2 * in_use + 3) * size
