"""Records never overlap, whatever the sizes and the order of things."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine.transport.anchor_ring import AnchorRing
from engine.transport.channel import Channel, ChannelLayout
from engine.transport.shared_memory import PAGE


@contextmanager
def both_ends(
    slots: int, size: int, usual: int = 0
) -> Iterator[tuple[AnchorRing, AnchorRing]]:
    """The ring of an input of `size` bytes, as client and device have it."""
    layout = ChannelLayout(slots, (size,), (), (usual or size,))
    client = Channel.create("test", layout)
    device = Channel.attach(os.dup(client.memory.fd), layout)
    yield client.inputs[0], device.inputs[0]
    device.close()
    client.close()


def put(ring: AnchorRing, nbytes: int) -> int:
    """Publish a record; returns its offset, -1 if there is no room."""
    offset = ring.place(nbytes)
    if offset >= 0:
        ring.describe(0, ring.written + 1, offset, nbytes, (nbytes,))
        ring.write_complete()
    return offset


def release(ring: AnchorRing, count: int = 1) -> None:
    for _ in range(count):
        assert ring.try_read_lock() >= 0
    ring.read_complete(count)


@pytest.mark.parametrize("seed", range(20))
def test_records_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    slots, size = rng.choice([1, 2, 7, 32]), rng.choice([64, 256, 8000, 24 << 20])
    live: list[tuple[int, int]] = []
    placed = 0
    with both_ends(slots, size, rng.choice([0, size // 2])) as (producer, consumer):
        for _ in range(3000):
            if live and rng.random() < 0.45:
                release(consumer)
                live.pop(0)
                continue
            nbytes = rng.choice([0, 1, 8, 40, size // 3, size])
            offset = put(producer, nbytes)
            if offset < 0:
                assert live or nbytes > size
                continue
            assert 0 <= offset <= offset + nbytes <= size
            for start, used in live:
                assert offset + nbytes <= start or start + used <= offset
            live.append((offset, nbytes))
            placed += 1
    assert placed > 100


@pytest.mark.parametrize("seed", range(20))
def test_the_records_of_a_batch_never_overlap_with_others(seed: int) -> None:
    """A batch has one place. Some of its records have no bytes, also the last one."""
    rng = random.Random(seed)
    size = rng.choice([64, 256, 4096])
    live: list[tuple[int, int]] = []
    placed = 0
    with both_ends(32, size) as (producer, consumer):
        for _ in range(3000):
            if live and rng.random() < 0.6:
                release(consumer)
                live.pop(0)
                continue
            row = rng.choice([0, 1, 5, 8, 13, size // 8])
            records = [rng.choice([0, 1, 1, 2]) * row for _ in range(4)]
            offset = producer.place(sum(records))
            if offset < 0 or producer.write_available < len(records):
                assert live or sum(records) > size
                continue
            placed += 1
            for ahead, nbytes in enumerate(records):
                assert all(
                    not nbytes or begin >= offset + nbytes or end <= offset
                    for begin, end in live
                    if begin < end
                )
                producer.describe(ahead, placed, offset, nbytes, (nbytes,))
                live.append((offset, offset + nbytes))
                offset += nbytes
            producer.write_complete(len(records))
    assert placed > 100


def test_an_empty_ring_starts_over() -> None:
    with both_ends(8, 1024) as (producer, consumer):
        for _ in range(100):
            assert put(producer, 1000) == 0
            assert producer.place(100) == -1
            release(consumer)
        assert producer.place(1025) == -1


def test_what_is_larger_than_usual_gives_its_memory_back() -> None:
    small, large = PAGE, 6 * PAGE
    with both_ends(8, 10 * PAGE, 4 * PAGE) as (producer, consumer):
        # A ring that is never empty goes round in the usual memory.
        offsets = {put(producer, small) for _ in range(2)}
        for _ in range(20):
            offsets.add(put(producer, small))
            release(consumer)
        assert max(offsets) + small <= 4 * PAGE
        release(consumer, 2)
        put(producer, small)
        assert put(producer, large) == small  # and beside it
        beyond = slice(4 * PAGE, small + large)
        producer.payload[beyond] = b"x" * (3 * PAGE)
        release(consumer, 2)
        # More of the same size: kept. The usual size: given back.
        assert put(producer, large) == 0
        release(consumer)
        assert bytes(consumer.payload[beyond]) == b"x" * (3 * PAGE)
        assert put(producer, 8) == 0
        assert bytes(consumer.payload[beyond]) == bytes(3 * PAGE)


@pytest.mark.parametrize("in_use", [1, 3, 8])
def test_a_ring_that_is_never_empty_stays_in_memory_it_has_touched(in_use: int) -> None:
    size, reached = 4 << 20, 0
    with both_ends(64, 256 << 20) as (producer, consumer):
        for number in range(500):
            offset = put(producer, size)
            assert offset >= 0
            reached = max(reached, offset + size)
            if number >= in_use:
                release(consumer)
    assert reached <= (2 * in_use + 3) * size


def test_only_data_of_the_request_is_locked() -> None:
    with both_ends(4, PAGE) as (producer, consumer):
        assert consumer.lock_of(1) == -1
        put(producer, 8)
        put(producer, 8)
        assert consumer.lock_of(2) == -1
        assert [consumer.lock_of(number) for number in (1, 2, 3)] == [0, 1, -1]
        assert consumer.held == 2
