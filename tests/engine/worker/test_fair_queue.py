"""The order in which a batch is taken from channels of several levels and clients."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

from engine.worker.client_channel import ClientChannel, Share
from engine.worker.fair_queue import SHARE_OF_LOWER, FairQueue


def channel(
    number: int, priority: int, pending: int = 1, weight: int = 0, lane: int = 0
) -> ClientChannel:
    """What the order depends on, without a segment and a link behind it."""
    made = SimpleNamespace(
        number=number,
        priority=priority,
        pending=pending,
        weight=weight,
        lane=lane,
        share=Share(),
        last_turn=0,
    )
    return cast(ClientChannel, made)


def queue_of(*channels: ClientChannel) -> FairQueue:
    queue = FairQueue()
    for one in channels:
        queue.add(one)
    return queue


def firsts(queue: FairQueue, count: int) -> Counter[int]:
    return Counter(queue.next()[0].number for _ in range(count))


def test_channels_of_one_level_are_served_round_robin() -> None:
    queue = queue_of(*(channel(n, 0) for n in range(3)))
    assert firsts(queue, 30) == {0: 10, 1: 10, 2: 10}
    assert {len(queue.next()) for _ in range(9)} == {3}


def test_higher_levels_come_first() -> None:
    queue = queue_of(channel(3, 3), channel(1, 1), channel(2, 2))
    assert [c.number for c in queue.next()] == [1, 2, 3]


def test_lower_levels_get_their_share() -> None:
    queue = queue_of(*(channel(n, n) for n in (1, 2, 3)))
    counts = firsts(queue, 20 * SHARE_OF_LOWER)
    assert counts == {1: 20 * (SHARE_OF_LOWER - 1), 2: 10, 3: 10}


def test_a_level_without_requests_has_no_share() -> None:
    queue = queue_of(channel(1, 1), channel(2, 2, pending=0))
    assert firsts(queue, 10 * SHARE_OF_LOWER) == {1: 10 * SHARE_OF_LOWER}


def test_a_removed_channel_is_not_asked() -> None:
    first, second = channel(1, 1), channel(2, 1)
    queue = queue_of(first, second)
    queue.remove(first)
    assert list(queue.next()) == [second]
    queue.remove(second)
    assert list(queue.next()) == []


# -- weights


def served(queue: FairQueue, batches: int, rows: int = 1) -> Counter[int]:
    """Rows of each channel, where the first of each batch's order fills it."""
    counts: Counter[int] = Counter()
    for _ in range(batches):
        first = next(c for c in queue.next() if c.pending)
        counts[first.number] += rows
        queue.charge([SimpleNamespace(client=first, rows=rows)])
    return counts


def test_rows_go_by_weight() -> None:
    queue = queue_of(channel(1, 0, weight=3), channel(2, 0))
    assert served(queue, 400, rows=4) == {1: 1200, 2: 400}


def test_lanes_of_one_weight_have_a_share_each() -> None:
    """However much more one of them has waiting."""
    queue = queue_of(
        channel(1, 0, weight=6),
        channel(2, 0, 1000, weight=2),
        channel(3, 0, weight=2, lane=1),
    )
    assert served(queue, 500) == {1: 300, 2: 100, 3: 100}


def test_clients_have_one_share_of_a_lane_together() -> None:
    clients = [channel(n, 0, weight=3) for n in range(4)]
    other = channel(4, 0, weight=1)
    queue = queue_of(*clients, other)
    counts = served(queue, 400)
    assert counts[4] == 100
    assert [counts[n] for n in range(4)] == [75] * 4
    for one in clients[1:]:
        queue.remove(one)
    queue.add(channel(5, 0))  # its lane has nobody else in it
    queue.add(channel(6, 0))
    assert served(queue, 500) == {0: 300, 4: 100, 5: 50, 6: 50}


def test_a_channel_saves_nothing_up_while_it_waits_for_nothing() -> None:
    one, other = channel(1, 0, weight=3), channel(2, 0, pending=0, weight=1)
    queue = queue_of(one, other)
    assert served(queue, 1000) == {1: 1000}
    other.pending = 1
    assert served(queue, 40) == {1: 30, 2: 10}
    late = channel(3, 0, weight=3, lane=1)
    queue.add(late)
    assert served(queue, 70) == {1: 30, 2: 10, 3: 30}


def test_a_higher_level_comes_before_any_weight() -> None:
    queue = queue_of(channel(1, 1), channel(2, 2, weight=100))
    counts = firsts(queue, 10 * SHARE_OF_LOWER)
    assert counts == {1: 10 * (SHARE_OF_LOWER - 1), 2: 10}
