"""Fair queueing: higher priority levels first, and none starved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from engine.worker.client_channel import ClientChannel

#: One batch in so many begins with a lower level, if one waits.
SHARE_OF_LOWER = 8


class Taken(Protocol):
    """A request that is in a batch."""

    client: ClientChannel
    rows: int


class FairQueue:
    """The channels of a replica, and the order in which a batch is taken from them.

    A channel has one priority level; 1 is the highest, and 0, for models without
    levels, comes before it. Channels of the same level are served round robin. A level
    is served when those above it have nothing more that fits into the batch; so that it
    gets its share under any load, every `SHARE_OF_LOWER`-th batch begins with a lower
    level that waits, round robin too.

    Where a channel has a weight, those of a level are served not round robin but by
    start-time fair queueing: first the one that has used least for its weight (1, if it
    has none). One that has nothing waiting saves nothing up. Those of several clients
    with the same weight and lane use one share, so that a user of a weight has no more
    of it who comes by several processes, and take turns in it.
    """

    def __init__(self) -> None:
        self.channels: list[ClientChannel] = []
        #: Whether `charge` is to be told what was taken.
        self.is_weighted = False
        self._levels: list[list[ClientChannel]] = []
        self._turn = 0

    def add(self, channel: ClientChannel) -> None:
        level = [c for c in self.channels if c.priority == channel.priority]
        line = channel.weight, channel.lane
        same = [c.share for c in level if (c.weight, c.lane) == line]
        if same:
            channel.share = same[0]
        else:
            channel.share.used = max((c.share.used for c in level), default=0.0)
        self.channels.append(channel)
        self._sort()

    def remove(self, channel: ClientChannel) -> None:
        self.channels.remove(channel)
        self._sort()

    def _sort(self) -> None:
        numbers = sorted({channel.priority for channel in self.channels})
        self._levels = [
            [channel for channel in self.channels if channel.priority == number]
            for number in numbers
        ]
        self.is_weighted = any(channel.weight for channel in self.channels)

    def charge(self, taken: Iterable[Taken]) -> None:
        """Count what has been taken for a batch."""
        for each in taken:
            client = each.client
            client.share.used += (each.rows or 1) / (client.weight or 1)
            client.last_turn = self._turn

    def next(self) -> Sequence[ClientChannel]:
        """Returns the channels in the order in which the next batch takes from them."""
        if self.is_weighted:
            for level in self._levels:
                _forget_savings(level)
        order = self.upcoming()
        self._turn += 1
        return order

    def upcoming(self) -> Sequence[ClientChannel]:
        """Returns what `next` will return, if no more requests come."""
        if len(self.channels) < 2:
            return self.channels
        turn, levels = self._turn + 1, self._levels
        if len(levels) > 1 and turn % SHARE_OF_LOWER == 0:
            levels = self._lower_first(turn)
        if self.is_weighted:
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


def _forget_savings(level: list[ClientChannel]) -> None:
    """What has not waited has used no less than what waits has."""
    waiting = [channel.share.used for channel in level if channel.pending]
    least = min(waiting, default=0.0)
    for channel in level:
        if channel.share.used < least:
            channel.share.used = least


def _rotated(level: list[ClientChannel], turn: int) -> list[ClientChannel]:
    if len(level) == 1:
        return level
    first = turn % len(level)
    return level[first:] + level[:first]
