"""Memory behind the rings of a channel: contiguous records of any size.

For anchors whose size differs from request to request. What a slot of the ring
describes is free again when that slot is released, in the same order, so the pool needs
no counter of its own in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.transport.ring_buffer import RingCounters

#: Records begin at multiples of this: every item of every data type is aligned, and
#: rows of equal size usually touch, so that a batch of them is one array.
RECORD_ALIGNMENT = 8
#: So many bytes must be free at the start of the memory for a pool to go back there
#: before its end: rows side by side make one array, and it tears them apart.
WORTH_TURNING = 1 << 20


class RecordPool:
    """Places contiguous records in `capacity` bytes; producer side only.

    The producer remembers where the record of each slot begins; the oldest slot the
    consumer has not released marks the end of the free space. When all is released
    the pool starts over at 0, so that a lightly used ring stays in the cache, and goes
    back to 0 early where enough is free there, so that what is touched stays about
    twice what was in use at once.

    The first `usual` bytes are gone round in for as long as they do (0: all). What was
    used beyond them, by records larger than usual, is handed to `give_back` (from, to)
    when nothing is left there and a record of the usual size comes.
    """

    __slots__ = (
        "_give_back",
        "_head",
        "_reached",
        "_ring",
        "_starts",
        "_usual",
        "capacity",
    )

    def __init__(
        self,
        ring: RingCounters,
        capacity: int,
        usual: int = 0,
        give_back: Callable[[int, int], None] | None = None,
    ) -> None:
        self._ring = ring
        self.capacity = capacity
        self._usual = usual or capacity
        self._reached = self._usual
        self._give_back = give_back
        self._head = 0
        self._starts = [0] * ring.capacity

    def place(self, nbytes: int) -> int:
        """Where `nbytes` contiguous bytes are free and a slot is, or -1.

        Takes nothing yet: `take` does.
        """
        # What it will take: whole units, and never nothing, so that a head that has
        # caught up with the tail always means full.
        size = -(-(nbytes or 1) // RECORD_ALIGNMENT) * RECORD_ALIGNMENT
        ring = self._ring
        waiting, oldest = ring.unreleased()
        if waiting == 0:
            self._head = 0
            if self._reached > self._usual >= size:
                self._shrink()
            return 0 if size <= self.capacity else -1
        if waiting >= ring.capacity:
            return -1
        head, tail = self._head, self._starts[oldest]
        if head > tail:
            if tail >= WORTH_TURNING and tail >= head - tail + size:
                return 0  # room for as much again as is in use: memory that is warm
            if self._usual - head >= size:
                return head
            if size <= tail:
                return 0
            return head if self.capacity - head >= size else -1
        return head if tail - head >= size else -1

    def _shrink(self) -> None:
        if self._give_back is not None:
            self._give_back(self._usual, self._reached)
        self._reached = self._usual

    def take(self, slot: int, offset: int, nbytes: int) -> None:
        """This slot, which is published next, gets this placed record."""
        self._starts[slot] = offset
        end = offset + (nbytes or 1)
        if end > self._reached:
            self._reached = end
        self._head = -(-end // RECORD_ALIGNMENT) * RECORD_ALIGNMENT

    def __repr__(self) -> str:
        return f"<RecordPool {self.capacity} bytes, next at {self._head}>"
