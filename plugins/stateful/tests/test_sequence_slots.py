"""Slots of sequences: how many run, and which is next."""

from __future__ import annotations

from dataclasses import dataclass

from popgate_stateful.sequence_slots import SequenceSlots


@dataclass(frozen=True)
class Sequence:
    owner: str | None
    number: int


def test_any_number_may_run_without_a_limit() -> None:
    run: list[Sequence] = []
    slots: SequenceSlots[Sequence] = SequenceSlots(None, run.append)
    both = Sequence("a", 1), Sequence("a", 2)
    assert all(map(slots.acquire, both))
    slots.release(both[0])
    slots.release(both[0])
    assert run == []
    assert slots.acquire(both[0])


def test_a_free_slot_goes_to_the_key_with_the_fewest() -> None:
    run: list[Sequence] = []
    slots: SequenceSlots[Sequence] = SequenceSlots(3, run.append)
    first = [Sequence("a", 1), Sequence("a", 2), Sequence("b", 3)]
    assert all(map(slots.acquire, first))
    later = [Sequence("a", 4), Sequence("b", 5), Sequence("c", 6)]
    assert not any(map(slots.acquire, later))
    assert slots.acquire(first[0])  # it has one already
    slots.release(first[0])
    assert run == [later[2]]
    slots.release(first[1])
    assert run == [later[2], later[0]]
    slots.release(later[1])  # it only waits
    assert run == [later[2], later[0]]


def test_a_sequence_that_ends_at_once_hands_its_slot_on() -> None:
    run: list[Sequence] = []

    def end(sequence: Sequence) -> None:
        run.append(sequence)
        slots.release(sequence)

    slots: SequenceSlots[Sequence] = SequenceSlots(1, end)
    one, *rest = (Sequence(None, number) for number in range(100))
    assert slots.acquire(one)
    assert not any(map(slots.acquire, rest))
    slots.release(one)
    assert run == rest
    assert slots.acquire(one)
