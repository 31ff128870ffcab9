"""The order in which a batch is taken from channels of several levels and clients."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from engine.worker.client_channel import ClientChannel, DeviceShare
from engine.worker.fair_queue import (
    SAVED_NS,
    SAVED_RUNS,
    SHARE_OF_LOWER,
    DeviceShares,
    FairQueue,
    Taken,
)

MS = 1_000_000


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
        share=DeviceShare(),
        last_turn=0,
        is_aside=False,
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


def served(
    queue: FairQueue, batches: int, rows: int = 1, cost: float = 10.0
) -> Counter[int]:
    """Rows of each channel, where the first of each batch's order fills it."""
    counts: Counter[int] = Counter()
    for _ in range(batches):
        look(queue.shares, queue)
        first = next(c for c in queue.next() if c.pending)
        counts[first.number] += rows
        queue.charge([taken(first, rows)], cost)
    return counts


def taken(channel: ClientChannel, rows: int = 1) -> Taken:
    return cast(Taken, SimpleNamespace(client=channel, rows=rows))


def look(shares: DeviceShares, *queues: FairQueue) -> None:
    """As the scheduler does before each run."""
    shares.in_turn(deque(queues))


def device_time(
    queues: dict[FairQueue, float], runs: int, shares: DeviceShares
) -> Counter[int]:
    """The time that each channel has of a device, whose models take so long a run."""
    time: Counter[int] = Counter()
    for _ in range(runs):
        look(shares, *queues)
        queue = min(queues, key=lambda one: one.used)
        first = next(c for c in queue.next() if c.pending)
        cost = queues[queue]
        queue.charge([taken(first)], cost)
        time[first.number] += int(cost)
    return time


def near(found: Counter[int], *wanted: float) -> bool:
    """Whether times are as these to each other, but for one in ten."""
    total = sum(found.values()) / sum(wanted)
    pairs = zip(wanted, (found[n] for n in sorted(found)), strict=True)
    return all(abs(time / total / share - 1) < 0.1 for share, time in pairs)


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
    served(queue, 10, cost=SAVED_NS)  # what the new lane begins with
    counts = served(queue, 500, cost=SAVED_NS)
    assert counts == {0: 300, 4: 100, 5: 50, 6: 50}


def test_a_channel_saves_up_little_while_nothing_of_it_waits() -> None:
    one, other = channel(1, 0, weight=3), channel(2, 0, pending=0, weight=1)
    queue = queue_of(one, other)
    run = SAVED_NS / 10
    assert served(queue, 1000, cost=run) == {1: 1000}
    other.pending = 1
    # The ten runs that it has saved up, and no more of the thousand that it missed.
    assert served(queue, 10, cost=run) == {2: 10}
    assert near(served(queue, 400, cost=run), 3, 1)
    late = channel(3, 0, weight=3, lane=1)
    queue.add(late)
    assert near(served(queue, 700, cost=run), 3, 1, 3)


def test_long_runs_leave_longer_gaps() -> None:
    """What a share misses in two runs of another it gets after them."""
    one, other = channel(1, 0, weight=1), channel(2, 0, pending=0, weight=1, lane=1)
    queue = queue_of(one, other)
    assert served(queue, 100, cost=10 * SAVED_NS) == {1: 100}
    other.pending = 1
    assert served(queue, SAVED_RUNS, cost=10 * SAVED_NS) == {2: SAVED_RUNS}
    assert near(served(queue, 100, cost=10 * SAVED_NS), 1, 1)


class Closed:
    """Clients of one user that ask again when they have their answer."""

    def __init__(self, channel: ClientChannel, rows: int, clients: int) -> None:
        self.channel = channel
        self.rows = rows
        #: When each of those that wait for nothing asks again.
        self.back = [0.0] * clients

    def ask(self, now: float) -> None:
        """Submit the requests whose time has come."""
        self.channel.pending += sum(back <= now for back in self.back)
        self.back = [back for back in self.back if back > now]


def closed_loop(
    users: list[Closed],
    max_rows: int,
    cost: Callable[[Closed], float],
    stop: float,
    often: float,
) -> Counter[int]:
    """Return the time of the device that each user had.

    `cost` is that of a run, led by a user. Answers take a moment to reach the clients,
    and after some of the runs (`often`) a user stops for longer, as a process does that
    gets no processor.
    """
    random = Random(1)
    queue = queue_of(*(user.channel for user in users))
    by_number = {user.channel.number: user for user in users}
    time: Counter[int] = Counter()
    now = 0.0
    for _ in range(5_000):
        for user in users:
            user.ask(now)
        if not any(user.channel.pending for user in users):
            now = min(back for user in users for back in user.back)
            continue
        look(queue.shares, queue)
        members: list[Taken] = []
        room = max_rows
        for one in queue.next():
            user = by_number[one.number]
            while one.pending and (user.rows <= room or not members):
                members.append(taken(one, user.rows))
                one.pending -= 1
                room -= user.rows
        took = cost(by_number[members[0].client.number])
        now += took
        queue.charge(members, took)
        rows = sum(each.rows for each in members)
        stopped = {number: random.random() < often for number in by_number}
        for each in members:
            number = each.client.number
            time[number] += int(took * each.rows / rows)
            pause = stop if stopped[number] else random.random() * 2 * MS
            by_number[number].back.append(now + pause)
    return time


@pytest.mark.parametrize(
    ("weights", "clients"), [((1, 1), (40, 4)), ((1, 1), (40, 16)), ((3, 1), (120, 6))]
)
def test_users_of_unequal_rows_have_their_shares(
    weights: tuple[int, int], clients: tuple[int, int]
) -> None:
    """Requests of 1 and of 16 rows, in runs of 32, with gaps in what waits."""
    few = Closed(channel(1, 0, 0, weights[0]), 1, clients[0])
    many = Closed(channel(2, 0, 0, weights[1], lane=1), 16, clients[1])
    found = closed_loop([few, many], 32, lambda leader: 8 * MS, 30 * MS, 0.3)
    assert near(found, *weights), found


@pytest.mark.parametrize(("weights", "clients"), [((1, 1), 2), ((3, 1), 4)])
def test_users_of_unequal_runs_have_their_shares(
    weights: tuple[int, int], clients: int
) -> None:
    """Runs of 10 and of 40 ms, of one request each, with gaps in what waits."""
    quick = Closed(channel(1, 0, 0, weights[0]), 1, clients)
    slow = Closed(channel(2, 0, 0, weights[1], lane=1), 1, clients)

    def cost(leader: Closed) -> float:
        return (10 if leader is quick else 40) * MS

    found = closed_loop([quick, slow], 1, cost, 60 * MS, 0.2)
    assert near(found, *weights), found


def test_a_higher_level_comes_before_any_weight() -> None:
    queue = queue_of(channel(1, 1), channel(2, 2, weight=100))
    counts = firsts(queue, 10 * SHARE_OF_LOWER)
    assert counts == {1: 10 * (SHARE_OF_LOWER - 1), 2: 10}


def test_shares_hold_over_all_models_of_a_device() -> None:
    """A quick model of a weight of 3 beside a slow one of a weight of 1."""
    shares = DeviceShares()
    quick, slow = FairQueue(shares), FairQueue(shares)
    quick.add(channel(1, 0, weight=3))
    slow.add(channel(2, 0, weight=1))
    found = device_time({quick: 70, slow: 260}, 2000, shares)
    assert near(found, 3, 1), found


def test_a_user_of_two_models_has_no_more_than_a_user_of_one() -> None:
    shares = DeviceShares()
    first, second = FairQueue(shares), FairQueue(shares)
    first.add(channel(1, 0, weight=2))
    second.add(channel(1, 0, weight=2))
    second.add(channel(2, 0, weight=2, lane=1))
    assert near(device_time({first: 30, second: 10}, 4000, shares), 1, 1)


def test_shares_are_of_time_and_not_of_rows() -> None:
    queue = queue_of(channel(1, 0, weight=1), channel(2, 0, weight=1, lane=1))
    cost, time = {1: 10, 2: 40}, Counter[int]()
    for _ in range(1000):
        look(queue.shares, queue)
        first = queue.next()[0]
        queue.charge([taken(first)], cost[first.number])
        time[first.number] += cost[first.number]
    assert near(time, 1, 1), time


def test_members_of_one_run_share_its_cost_by_rows() -> None:
    one, other = channel(1, 0, weight=1), channel(2, 0, weight=4)
    queue = queue_of(one, other)
    before = one.share.used, other.share.used
    queue.charge([taken(one, 1), taken(other, 4)], 100)
    assert one.share.used - before[0] == pytest.approx(20)
    assert other.share.used - before[1] == pytest.approx(80 / 4)


def test_a_share_that_is_new_begins_where_an_idle_one_does() -> None:
    shares = DeviceShares()
    old, new = FairQueue(shares), FairQueue(shares)
    old.add(channel(1, 0, weight=1))
    idle = channel(3, 0, pending=0, weight=1, lane=2)
    old.add(idle)
    run = SAVED_NS / 10
    device_time({old: run}, 1000, shares)
    new.add(channel(2, 0, weight=1, lane=1))
    idle.pending = 1
    found = device_time({old: run, new: run}, 20, shares)
    assert found == {2: 10 * run, 3: 10 * run}
    assert near(device_time({old: run, new: run}, 300, shares), 1, 1, 1)


def test_without_a_weight_nothing_is_counted() -> None:
    shares = DeviceShares()
    queue = FairQueue(shares)
    plain, weighted = channel(1, 0), channel(2, 0, weight=2)
    queue.add(plain)
    assert not shares.is_weighted
    queue.add(weighted)
    assert shares.is_weighted
    queue.remove(weighted)
    assert not shares.is_weighted
