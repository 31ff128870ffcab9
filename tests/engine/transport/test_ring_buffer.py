"""The ring: full, empty, held, put back; both ends in one process."""

from __future__ import annotations

import pytest

from engine.errors import EngineBug, InvalidConfig
from engine.transport.ring_buffer import CONTROL_SIZE, RingCounters


def two_ends(capacity: int) -> tuple[RingCounters, RingCounters]:
    memory = memoryview(bytearray(CONTROL_SIZE))
    return RingCounters(memory, capacity), RingCounters(memory, capacity)


@pytest.mark.parametrize("capacity", [1, 2, 3, 64])
def test_fills_to_capacity_and_empties(capacity: int) -> None:
    producer, consumer = two_ends(capacity)
    for _ in range(3):
        for _ in range(capacity):
            assert producer.try_write_lock() >= 0
            producer.write_complete()
        assert producer.try_write_lock() == -1
        assert producer.write_available == 0
        slots = [consumer.try_read_lock() for _ in range(capacity)]
        assert sorted(slots) == list(range(capacity))
        assert consumer.try_read_lock() == -1
        assert producer.try_write_lock() == -1  # held, not released
        consumer.read_complete(capacity)
        assert producer.write_available == capacity


def test_slots_come_in_the_order_they_were_published() -> None:
    producer, consumer = two_ends(3)
    seen = []
    for round_number in range(10):
        slot = producer.try_write_lock()
        assert slot == round_number % 3
        producer.write_complete()
        seen.append(consumer.try_read_lock())
        consumer.read_complete()
    assert seen == [n % 3 for n in range(10)]


def test_read_reset_puts_held_slots_back() -> None:
    producer, consumer = two_ends(4)
    producer.write_complete(3)
    assert [consumer.try_read_lock() for _ in range(3)] == [0, 1, 2]
    consumer.read_complete()
    consumer.read_reset()
    assert consumer.held == 0
    assert [consumer.try_read_lock() for _ in range(3)] == [1, 2, -1]
    consumer.unlock_last()
    assert consumer.try_read_lock() == 2


def test_an_end_attached_later_sees_what_was_published() -> None:
    memory = memoryview(bytearray(CONTROL_SIZE))
    producer = RingCounters(memory, 4)
    producer.write_complete(3)
    assert RingCounters(memory, 4).try_read_lock() == 0
    assert "3/4 filled" in repr(producer)


def test_misuse_is_named() -> None:
    _, consumer = two_ends(2)
    with pytest.raises(EngineBug):
        consumer.read_complete()
    with pytest.raises(EngineBug):
        consumer.unlock_last()
    with pytest.raises(InvalidConfig):
        RingCounters(memoryview(bytearray(CONTROL_SIZE)), 0)
