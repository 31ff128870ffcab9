"""Memory behind the rings, handed out and given back in the same order.

`RingMemoryPool` has blobs of one size (Model Runtime: `RingMemoryPool`); `RecordPool`
has contiguous records of any size, for anchors whose size differs from request to
request. Both stand behind a ring: what a slot of the ring describes is free again when
that slot is released, so neither needs a counter of its own in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidConfig
from engine.ring_buffer import RingCounters

if TYPE_CHECKING:
    from engine.queues import AnchorQueue

#: Records begin at multiples of this: every item of every data type is aligned, and
#: rows of equal size usually touch, so that a batch of them is one array.
RECORD_ALIGNMENT = 8


class RingMemoryPool:
    """`num_blobs` blobs of `blob_size` bytes, handed out round and round."""

    def __init__(self, blob_size: int, num_blobs: int) -> None:
        if blob_size < 1 or num_blobs < 1:
            msg = f"RingMemoryPool needs sizes >= 1, got {blob_size} x {num_blobs}"
            raise InvalidConfig(msg)
        self._memory = memoryview(bytearray(blob_size * num_blobs))
        self._blob_size = blob_size
        self._num_blobs = num_blobs
        self._next = 0

    @property
    def blob_size(self) -> int:
        return self._blob_size

    @property
    def num_blobs(self) -> int:
        return self._num_blobs

    def get_memory_blob(self) -> memoryview:
        """The next blob; after the last comes the first again."""
        start = self._next * self._blob_size
        self._next = (self._next + 1) % self._num_blobs
        return self._memory[start : start + self._blob_size]

    def __repr__(self) -> str:
        return f"<RingMemoryPool {self._num_blobs} x {self._blob_size} bytes>"


def allocate_queue_storage(
    queue: AnchorQueue[Any], extra_buffers: int = 0
) -> RingMemoryPool:
    """Memory for as many compiled batches as `queue` has buffers, and `extra_buffers`
    more (Model Runtime: `allocateQueueStorage`). A row each where the batch is free."""
    return RingMemoryPool(
        queue.batch_bytes or queue.sample_bytes, queue.num_buffers + extra_buffers
    )


class RecordPool:
    """Places contiguous records in `capacity` bytes; producer side only.

    The producer remembers where the record of each slot begins; the oldest slot the
    consumer has not released marks the end of the free space. When all is released
    the pool starts over at 0, so that a lightly used ring stays in the cache.

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
