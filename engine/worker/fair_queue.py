"""Fair queueing: higher priority levels first, and none starved."""

from __future__ import annotations

from collections.abc import Sequence

from engine.worker.client_channel import ClientChannel

#: One batch in so many begins with a lower level, if one waits.
SHARE_OF_LOWER = 8


class FairQueue:
    """The channels of a replica, and the order in which a batch is taken from them.

    A channel has one priority level; 1 is the highest, and 0, for models without
    levels, comes before it. Channels of the same level are served round robin. A level
    is served when those above it have nothing more that fits into the batch; so that it
    gets its share under any load, every `SHARE_OF_LOWER`-th batch begins with a lower
    level that waits, round robin too.
    """

    def __init__(self) -> None:
        self.channels: list[ClientChannel] = []
        self._levels: list[list[ClientChannel]] = []
        self._turn = 0

    def add(self, channel: ClientChannel) -> None:
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

    def next(self) -> Sequence[ClientChannel]:
        """Returns the channels in the order in which the next batch takes from them."""
        if len(self.channels) < 2:
            return self.channels
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


def _rotated(level: list[ClientChannel], turn: int) -> list[ClientChannel]:
    if len(level) == 1:
        return level
    first = turn % len(level)
    return level[first:] + level[:first]
