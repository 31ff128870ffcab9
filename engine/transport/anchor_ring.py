"""The ring of one anchor: descriptors, and contiguous records of any size.

Anchor descriptor (32 words):
    0 request   number of the request the data belongs to
    1 offset    of the data in the payload memory of this anchor
    2 nbytes
    3 rank      number of dimensions that follow
    4 …         dimensions

Records are freed in order when their slots are released. So the payload memory needs no
counter of its own in shared memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from struct import Struct
from typing import Final

from engine.errors import InvalidInput
from engine.transport.ring_buffer import (
    ORDERED_STORES,
    READ_WORD,
    RingCounters,
    full_fence,
)
from engine.transport.shared_memory import SharedMemory

ANCHOR_SLOT: Final = 256
MAX_RANK: Final = 27
#: Descriptors by rank: four words, then the dimensions.
_BY_RANK = tuple(Struct(f"<{4 + rank}Q") for rank in range(MAX_RANK + 1))
_HEAD = _BY_RANK[0]
_2D = _BY_RANK[2]
_DIMS_BY_RANK = tuple(Struct(f"<{rank}Q") for rank in range(MAX_RANK + 1))
_DIMS_AT: Final = _HEAD.size

#: Records begin at multiples of this. So every item of every data type is aligned. Rows
#: of equal size are usually adjacent, so that a batch of them is one array.
RECORD_ALIGNMENT = 8
#: A ring returns to the start of its memory early only if this many bytes are free
#: there. Adjacent rows make one array, and returning early separates them.
WORTH_TURNING = 1 << 20
#: The most bytes that are returned to the system for one record.
GIVEN_BACK_AT_ONCE = 16 << 20


class AnchorRing(RingCounters):
    """One process's end of the ring of an anchor: its descriptors and `payload_size`
    bytes of payload.

    The producer remembers where the record of each slot begins. The oldest unreleased
    slot marks the end of the free space. When all slots are released the ring starts at
    0 again, so a lightly used ring stays in the cache. The ring also returns to 0 early
    if enough memory is free there. So the touched memory stays at about twice the
    memory in use.

    Normally the ring uses only the first `usual` bytes (0: all). Larger records use
    memory beyond them. When the ring is empty and usual records follow, each of those
    returns a part of that memory to the system.
    """

    __slots__ = (
        "_head",
        "_memory",
        "_reached",
        "_starts",
        "_usual",
        "payload",
        "payload_at",
        "payload_size",
        "table_at",
        "view",
        "words",
    )

    def __init__(
        self,
        control: memoryview,
        slots: int,
        memory: SharedMemory,
        words: memoryview,
        table_at: int,
        payload_at: int,
        payload_size: int,
        usual: int = 0,
    ) -> None:
        """Lay the ring over `words`, which is the segment up to its payload as 64-bit
        words.
        """
        super().__init__(control, slots)
        self._memory = memory
        self.view = memory.view
        self.words = words
        self.table_at = table_at
        self.payload_at = payload_at
        self.payload_size = payload_size
        self.payload = memory.view[payload_at : payload_at + payload_size]
        self._usual = usual or payload_size
        self._reached = self._usual
        self._head = 0
        self._starts = [0] * slots

    # -- producer

    def place(self, nbytes: int) -> int:
        """Return the position of `nbytes` contiguous free bytes, or -1 if there are
        none or no slot is free.

        Only `describe` takes the memory.
        """
        # A record takes whole units, and at least one. So if the head has caught up
        # with the tail, the ring is full.
        size = -(-(nbytes or 1) // RECORD_ALIGNMENT) * RECORD_ALIGNMENT
        read = self._read_seen = self._control[READ_WORD]
        if not ORDERED_STORES:
            full_fence()
        waiting = self.written - read
        if waiting == 0:
            self._head = 0
            if self._reached > self._usual >= size:
                self._shrink()
            return 0 if size <= self.payload_size else -1
        if waiting >= self.capacity:
            return -1
        head, tail = self._head, self._starts[read % self.capacity]
        if head > tail:
            if tail >= WORTH_TURNING and tail >= head - tail + size:
                return 0  # warm memory, with room for as much again as is in use
            if self._usual - head >= size:
                return head
            if size <= tail:
                return 0
            return head if self.payload_size - head >= size else -1
        return head if tail - head >= size else -1

    def _shrink(self) -> None:
        """Return the last bytes to the system. Takes a few milliseconds at most."""
        at, reached = self.payload_at, self._reached
        self._reached = max(self._usual, reached - GIVEN_BACK_AT_ONCE)
        self._memory.give_back(at + self._reached, at + reached)

    def describe(
        self, ahead: int, request: int, offset: int, nbytes: int, shape: tuple[int, ...]
    ) -> None:
        """Describe the record at `offset` in the descriptor `ahead` places after the
        next one.
        """
        slot = (self.written + ahead) % self.capacity
        self._starts[slot] = offset
        # A batch has one place. A row of no bytes at its end has nothing behind it.
        end = offset + (nbytes if nbytes or ahead else 1)
        if end > self._reached:
            self._reached = end
        self._head = -(-end // RECORD_ALIGNMENT) * RECORD_ALIGNMENT
        rank = len(shape)
        at = self.table_at + slot * ANCHOR_SLOT
        if rank == 2:  # the usual rank, without making a list of arguments
            rows, width = shape
            _2D.pack_into(self.view, at, request, offset, nbytes, 2, rows, width)
            return
        _BY_RANK[rank].pack_into(self.view, at, request, offset, nbytes, rank, *shape)

    # -- consumer

    def find(self, request: int, in_order: bool = True) -> int:
        """Return the slot with the data of `request`, which the caller releases with
        `skip`. Return -1 if the next data belongs to a later request.

        Requests of a channel end in the order of their numbers. So data of an earlier
        request comes from a run that failed after publishing it, and is dropped. If
        requests do not end `in_order`, the data of `request` must exist. Other data
        before it is dropped.
        """
        while True:
            if self._next == self._written_seen:
                self._written_seen = self._control[0]
                if self._next == self._written_seen:
                    return -1
                if not ORDERED_STORES:
                    full_fence()
            slot = self._next % self.capacity
            owner = self.words[(self.table_at + slot * ANCHOR_SLOT) // 8]
            if owner == request:
                return slot
            if in_order and owner > request:
                return -1
            self.skip()

    def lock_of(self, request: int) -> int:
        """Lock the next slot for reading if its data belongs to `request`, else return
        -1.
        """
        if self._next == self._written_seen:
            self._written_seen = self._control[0]
            if self._next == self._written_seen:
                return -1
            if not ORDERED_STORES:
                full_fence()
        slot = self._next % self.capacity
        if self.words[(self.table_at + slot * ANCHOR_SLOT) // 8] != request:
            return -1
        self._next += 1
        return slot

    def head(self, slot: int) -> tuple[int, int, int, int]:
        """Return (request, offset, nbytes, rank) of a published slot."""
        return _HEAD.unpack_from(self.view, self.table_at + slot * ANCHOR_SLOT)

    def record(self, slot: int) -> tuple[int, int, tuple[int, ...]]:
        """Return (offset, nbytes, shape) of a published slot."""
        at = self.table_at + slot * ANCHOR_SLOT
        _, offset, nbytes, rank = _HEAD.unpack_from(self.view, at)
        if rank > MAX_RANK:
            raise InvalidInput(f"rank {rank} is over {MAX_RANK}")
        shape = _DIMS_BY_RANK[rank].unpack_from(self.view, at + _DIMS_AT)
        return offset, nbytes, shape

    def dims(self, slot: int, rank: int) -> tuple[int, ...]:
        if rank > MAX_RANK:
            raise InvalidInput(f"rank {rank} is over {MAX_RANK}")
        at = self.table_at + slot * ANCHOR_SLOT + _DIMS_AT
        return _DIMS_BY_RANK[rank].unpack_from(self.view, at)

    def release(self) -> None:
        with contextlib.suppress(BufferError):  # a result is being read
            self.payload.release()
        super().release()


def lock_all(rings: Sequence[AnchorRing], request: int) -> list[int]:
    """Lock the slot of each input of this request for reading. -1 if the request lacks
    the input.
    """
    slots = []
    for ring in rings:
        slots.append(ring.lock_of(request))  # noqa: PERF401 - that is a call more
    return slots


def unlock_all(rings: Sequence[AnchorRing], slots: Sequence[int]) -> None:
    """Undo the last `lock_all`."""
    for ring, slot in zip(rings, slots, strict=True):
        if slot >= 0:
            ring.unlock_last()
