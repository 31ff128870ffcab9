"""The order in which a batch is taken from channels of several levels and clients."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

from engine.worker.client_channel import ClientChannel
from engine.worker.turns import SHARE_OF_LOWER, Turns


def channel(number: int, priority: int, pending: int = 1) -> ClientChannel:
    """What the order depends on, without a segment and a link behind it."""
    made = SimpleNamespace(number=number, priority=priority, pending=pending)
    return cast(ClientChannel, made)


def turns_of(*channels: ClientChannel) -> Turns:
    turns = Turns()
    for one in channels:
        turns.add(one)
    return turns


def firsts(turns: Turns, count: int) -> Counter[int]:
    return Counter(turns.next()[0].number for _ in range(count))


def test_channels_of_one_level_take_turns() -> None:
    turns = turns_of(*(channel(n, 0) for n in range(3)))
    assert firsts(turns, 30) == {0: 10, 1: 10, 2: 10}
    assert {len(turns.next()) for _ in range(9)} == {3}


def test_higher_levels_come_first() -> None:
    turns = turns_of(channel(3, 3), channel(1, 1), channel(2, 2))
    assert [c.number for c in turns.next()] == [1, 2, 3]


def test_lower_levels_get_their_share() -> None:
    turns = turns_of(*(channel(n, n) for n in (1, 2, 3)))
    counts = firsts(turns, 20 * SHARE_OF_LOWER)
    assert counts == {1: 20 * (SHARE_OF_LOWER - 1), 2: 10, 3: 10}


def test_a_level_without_requests_has_no_share() -> None:
    turns = turns_of(channel(1, 1), channel(2, 2, pending=0))
    assert firsts(turns, 10 * SHARE_OF_LOWER) == {1: 10 * SHARE_OF_LOWER}


def test_a_removed_channel_is_not_asked() -> None:
    first, second = channel(1, 1), channel(2, 1)
    turns = turns_of(first, second)
    turns.remove(first)
    assert list(turns.next()) == [second]
    turns.remove(second)
    assert list(turns.next()) == []
