"""Fair queueing: higher priority levels go first, and no level starves."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

from engine.worker.client_channel import ClientChannel, DeviceShare

#: One batch in this many begins with a lower level, if requests of one wait.
SHARE_OF_LOWER = 8
#: The device time, in nanoseconds, that a share of weight 1 saves up while none of its
#: requests wait. Clients that wait for answers leave gaps, and a share makes up for the
#: time that it misses in them.
SAVED_NS = 50_000_000
#: A share saves up the time of this many runs like the last one, if that is more.
SAVED_RUNS = 2


class Taken(Protocol):
    """A request that is in a batch."""

    client: ClientChannel
    rows: int


class Queued(Protocol):
    """A replica with waiting requests."""

    @property
    def channels(self) -> list[ClientChannel]: ...
    @property
    def used(self) -> float: ...


R = TypeVar("R", bound=Queued)


def _used(replica: Queued) -> float:
    return replica.used


class DeviceShares:
    """The use of a device by each weight and lane, over all its models.

    This is start-time fair queueing by device time. The next run goes to the share that
    has used least for its weight. An idle share saves up only a little (`SAVED_NS`).
    When it restarts, its use is that much less than the use of the share that was
    served last. `is_weighted` is set if any channel has a weight. Otherwise nothing is
    counted.
    """

    def __init__(self) -> None:
        self.is_weighted = False
        self._shares: dict[tuple[int, int], DeviceShare] = {}
        self._weighted = 0
        self._turn = 0
        self._served = 0.0
        #: The device time that a share may save up.
        self._saved: float = SAVED_NS
        #: Runs aside that are not charged yet, with their costs.
        self._unpaid: list[tuple[Sequence[Taken], float]] = []

    def add(self, channel: ClientChannel) -> None:
        """Give a new channel the share that belongs to its weight and lane."""
        key = channel.weight, channel.lane
        new = DeviceShare(self._served - self._saved)  # the same as for an idle share
        channel.share = self._shares.setdefault(key, new)
        self._count(channel, 1)

    def remove(self, channel: ClientChannel) -> None:
        """Forget a channel, but keep its share. The share gains nothing while it is
        idle.
        """
        self._count(channel, -1)

    def _count(self, channel: ClientChannel, more: int) -> None:
        self._weighted += more if channel.weight else 0
        self.is_weighted = self._weighted > 0

    def in_turn(self, replicas: deque[R]) -> deque[R]:
        """Return the replicas, first the one whose next request has used least of the
        device for its weight. Equal replicas keep their order.
        """
        self._turn += 1
        for replica in replicas:
            for channel in replica.channels:
                if channel.pending:
                    self._see(channel)
        if len(replicas) < 2:
            return replicas
        return deque(sorted(replicas, key=_used))

    def _see(self, channel: ClientChannel) -> None:
        """Note a channel that has waiting requests."""
        share = channel.share
        if share.turn < self._turn - 1:
            # Not divided by the weight, so all shares that were idle start at the same
            # point.
            share.used = max(share.used, self._served - self._saved)
        share.turn = self._turn

    def charge(self, taken: Sequence[Taken], cost: float) -> None:
        """Divide the cost of a run, in nanoseconds, among its members by their rows.

        A run aside is charged when `settle` is called, because shares belong to the
        thread that schedules.
        """
        if not taken:
            return
        if taken[0].client.is_aside:
            self._unpaid.append((taken, cost))
            return
        self._served = max(self._served, min(e.client.share.used for e in taken))
        self._saved = max(SAVED_NS, SAVED_RUNS * cost)
        rows = sum(each.rows or 1 for each in taken)
        for each in taken:
            client = each.client
            client.share.used += cost * (each.rows or 1) / rows / (client.weight or 1)

    def settle(self) -> None:
        """Charge the runs of a replica that is no longer aside."""
        for taken, cost in self._unpaid:
            self.charge(taken, cost)
        self._unpaid.clear()

    def __repr__(self) -> str:
        return f"<DeviceShares {self._shares}>"


class FairQueue:
    """The channels of a replica, and the order in which a batch takes from them.

    A channel has one priority level. 1 is the highest. Models without levels use 0,
    which comes before 1. Channels of the same level are served round robin. A level is
    served when the higher levels have no more requests that fit into the batch. Every
    `SHARE_OF_LOWER`-th batch begins with a waiting lower level, round robin too, so
    that lower levels receive a share under any load.

    If a channel has a weight, `shares` order the channels of a level instead. The
    channel that has used least of the device for its weight (1 by default) goes first.
    Channels of several clients with the same weight and lane share their turns, so a
    user gains nothing by using several processes.
    """

    def __init__(self, shares: DeviceShares | None = None) -> None:
        """Make a queue with the `shares` of the device. By default it has its own."""
        self.channels: list[ClientChannel] = []
        self.shares = shares or DeviceShares()
        self._is_weighted = False
        self._levels: list[list[ClientChannel]] = []
        self._turn = 0

    def add(self, channel: ClientChannel) -> None:
        self.shares.add(channel)
        self.channels.append(channel)
        self._sort()

    def remove(self, channel: ClientChannel) -> None:
        self.channels.remove(channel)
        self.shares.remove(channel)
        self._sort()

    def _sort(self) -> None:
        numbers = sorted({channel.priority for channel in self.channels})
        self._levels = [
            [channel for channel in self.channels if channel.priority == number]
            for number in numbers
        ]
        self._is_weighted = any(channel.weight for channel in self.channels)

    def charge(self, taken: Sequence[Taken], cost: float) -> None:
        """Count the cost of a run of these requests, in nanoseconds."""
        self.shares.charge(taken, cost)
        for each in taken:
            each.client.last_turn = self._turn

    @property
    def used(self) -> float:
        """Return the used share of the channel that is served next. Return 0 if no
        requests wait.
        """
        waiting = (c.share.used for c in self.upcoming() if c.pending)
        return next(waiting, 0.0)

    def next(self) -> Sequence[ClientChannel]:
        """Return the channels in the order in which the next batch takes from them."""
        order = self.upcoming()
        self._turn += 1
        return order

    def upcoming(self) -> Sequence[ClientChannel]:
        """Return what `next` returns next if no more requests come."""
        if len(self.channels) < 2:
            return self.channels
        turn, levels = self._turn + 1, self._levels
        if len(levels) > 1 and turn % SHARE_OF_LOWER == 0:
            levels = self._lower_first(turn)
        if self._is_weighted:
            return [c for level in levels for c in sorted(level, key=_place)]
        return [channel for level in levels for channel in _rotated(level, turn)]

    def _lower_first(self, turn: int) -> list[list[ClientChannel]]:
        waiting = [lv for lv in self._levels if any(c.pending for c in lv)]
        if len(waiting) < 2:
            return self._levels
        lower = waiting[1:]
        chosen = lower[turn // SHARE_OF_LOWER % len(lower)]
        return [chosen, *(level for level in self._levels if level is not chosen)]

    def __repr__(self) -> str:
        return (
            f"<FairQueue of {len(self.channels)} channels, {len(self._levels)} levels>"
        )


def _place(channel: ClientChannel) -> tuple[float, int]:
    return channel.share.used, channel.last_turn


def _rotated(level: list[ClientChannel], turn: int) -> list[ClientChannel]:
    if len(level) == 1:
        return level
    first = turn % len(level)
    return level[first:] + level[:first]
