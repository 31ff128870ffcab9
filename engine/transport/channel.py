"""A channel: the rings between one client process and one replica of a model.

The map of the bytes
--------------------
One anonymous segment per channel, made by the client:

    0        u64 magic
    128      control block of the request ring             (see ring_buffer.py)
    256      control block of the ring of input anchor 0, 1, …, then output 0, 1, …
    table_at request descriptors, 64 bytes each
             anchor descriptors, 256 bytes each, for each anchor in the same order
    (page)   payload memory of each anchor, page-aligned

Request descriptor (8 words of 64 bits):
    0 request   number the client gave it        written by the client
    1 rows      units (engine/model/batch_plan.py), or 0 where requests are not counted
    2 flags     1 = cancelled (the client may set it until the slot is released)
                2 = fills up what waits, and is of no use else
                (engine/runner/flushing.py) 4 = is not delayed for the sake of a fuller
                batch 8 = its rows leave an incomplete run, whatever the policy (with 1)
                3 deadline  CLOCK_MONOTONIC nanoseconds, 0 = none 4 submitted
                CLOCK_MONOTONIC nanoseconds

Anchor descriptor (32 words):
    0 request   number of the request the data belongs to
    1 offset    of the data in the payload memory of this anchor
    2 nbytes
    3 rank      number of dimensions that follow
    4 …         dimensions

The rules
---------
- The client fills the payload, then the anchor descriptors, publishes the anchor rings,
  and publishes the request ring last: who sees the request sees its data.
- The device publishes the output rings, then the completion (engine/transport/link.py).
- Data is released in the order in which it was claimed. The device releases inputs
  when the batch that used them has run; the client releases outputs when it has copied
  them out, which it does as soon as it is told.
- Anchors not supplied by a request have no descriptor of that request: the number in
  word 0 of the next descriptor tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from engine.errors import InvalidInput
from engine.transport.record_pool import RecordPool
from engine.transport.ring_buffer import CONTROL_SIZE, RingCounters
from engine.transport.shared_memory import PAGE, SharedMemory, page_aligned

MAGIC: Final = 0x31304E4843475020  # " PGCHN01" read as a number
REQUEST_SLOT: Final = 64
ANCHOR_SLOT: Final = 256
MAX_RANK: Final = 27
CANCELLED: Final = 1
FILLS_UP: Final = 2
UNDELAYED: Final = 4
LEAVES: Final = 8

#: Bytes that an anchor of a channel may have.
MAX_PAYLOAD: Final = 1 << 40
_FLAGS_WORD: Final = 2
REQUEST = Struct("<5Q")
#: Anchor descriptors by rank: four words, then the dimensions.
ANCHOR_BY_RANK = tuple(Struct(f"<{4 + rank}Q") for rank in range(MAX_RANK + 1))
ANCHOR_HEAD = ANCHOR_BY_RANK[0]
ANCHOR_2D = ANCHOR_BY_RANK[2]
DIMS_BY_RANK = tuple(Struct(f"<{rank}Q") for rank in range(MAX_RANK + 1))
DIMS_AT: Final = ANCHOR_HEAD.size


@dataclass(frozen=True, slots=True)
class ChannelLayout:
    """Sizes both sides agree on; everything else follows from them.

    `usual`: of the payload memory of each anchor, inputs and then outputs, so much is
    used as long as that does; the rest is for records larger than usual. Empty: all.
    """

    slots: int
    input_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    usual: tuple[int, ...] = ()

    @property
    def anchors(self) -> int:
        return len(self.input_bytes) + len(self.output_bytes)

    @property
    def table_at(self) -> int:
        return CONTROL_SIZE * (2 + self.anchors)

    @property
    def payload_at(self) -> int:
        table = self.slots * (REQUEST_SLOT + ANCHOR_SLOT * self.anchors)
        return page_aligned(self.table_at + table)

    @property
    def size(self) -> int:
        payload = sum(map(page_aligned, self.input_bytes + self.output_bytes))
        return self.payload_at + payload

    def to_message(self) -> list[object]:
        sizes = (self.input_bytes, self.output_bytes, self.usual)
        return [self.slots, *map(list, sizes)]

    @classmethod
    def from_message(cls, message: Sequence[object]) -> ChannelLayout:
        slots, *groups = message
        if len(groups) != 3:
            raise ValueError(f"layout of a channel: {message!r}")
        if not (isinstance(slots, int) and 1 <= slots <= 1 << 20):
            raise ValueError(f"slots of a channel: {slots!r}")
        sizes = []
        for group in groups:
            if not (isinstance(group, list) and len(group) <= 65536):
                raise ValueError("anchors of a channel")
            if not all(isinstance(n, int) and PAGE <= n <= MAX_PAYLOAD for n in group):
                raise ValueError(f"payload sizes of a channel: {group!r}")
            sizes.append(tuple(group))
        inputs, outputs, usual = sizes
        if len(usual) not in (0, len(inputs) + len(outputs)):
            raise ValueError(f"usual sizes of a channel: {usual!r}")
        return cls(slots, inputs, outputs, usual)


class AnchorRing:
    """The descriptors and payload of one anchor; one process's end of it."""

    __slots__ = (
        "capacity",
        "payload",
        "payload_at",
        "pool",
        "ring",
        "table_at",
        "view",
        "words",
    )

    def __init__(
        self,
        memory: SharedMemory,
        words: memoryview,
        ring: RingCounters,
        table_at: int,
        payload_at: int,
        capacity: int,
        usual: int = 0,
    ) -> None:
        self.view = memory.view
        #: The segment up to its payload, as 64-bit words.
        self.words = words
        self.ring = ring
        self.table_at = table_at
        self.payload_at = payload_at
        self.capacity = capacity
        self.payload = memory.view[payload_at : payload_at + capacity]

        def give_back(start: int, end: int) -> None:
            memory.give_back(payload_at + start, payload_at + end)

        self.pool = RecordPool(ring, capacity, usual, give_back)

    def describe(
        self, ahead: int, request: int, offset: int, nbytes: int, shape: tuple[int, ...]
    ) -> None:
        """Fill the descriptor `ahead` places after the next one (producer)."""
        ring = self.ring
        slot = (ring.written + ahead) % ring.capacity
        self.pool.take(slot, offset, nbytes)
        rank = len(shape)
        at = self.table_at + slot * ANCHOR_SLOT
        if rank == 2:  # the usual, without a list of arguments to make
            rows, width = shape
            ANCHOR_2D.pack_into(self.view, at, request, offset, nbytes, 2, rows, width)
            return
        ANCHOR_BY_RANK[rank].pack_into(
            self.view, at, request, offset, nbytes, rank, *shape
        )

    def take(self, request: int) -> tuple[tuple[int, ...], bytes] | None:
        """Shape and a copy of the data that belongs to `request`, which is released;
        None if the next data belongs to a later one (consumer).

        Requests of a channel end in the order of their numbers. What belongs to an
        earlier one was published by a run that failed later on, and is dropped.
        """
        slot = self.find(request)
        if slot < 0:
            return None
        offset, nbytes, shape = self.record(slot)
        data = bytes(self.payload[offset : offset + nbytes])
        self.ring.skip()
        return shape, data

    def find(self, request: int) -> int:
        """The slot with the data of `request`, to be released with `ring.skip`; -1
        if the next data belongs to a later one (consumer)."""
        ring = self.ring
        while True:
            slot = ring.peek()
            if slot < 0:
                return -1
            owner = self.words[(self.table_at + slot * ANCHOR_SLOT) // 8]
            if owner == request:
                return slot
            if owner > request:
                return -1
            ring.skip()

    def head(self, slot: int) -> tuple[int, int, int, int]:
        """(request, offset, nbytes, rank) of a published slot (consumer)."""
        at = self.table_at + slot * ANCHOR_SLOT
        return ANCHOR_HEAD.unpack_from(self.view, at)

    def owner(self, slot: int) -> int:
        """The request that a published slot belongs to (consumer)."""
        return self.words[(self.table_at + slot * ANCHOR_SLOT) // 8]

    def record(self, slot: int) -> tuple[int, int, tuple[int, ...]]:
        """(offset, nbytes, shape) of a published slot (consumer)."""
        at = self.table_at + slot * ANCHOR_SLOT
        _, offset, nbytes, rank = ANCHOR_HEAD.unpack_from(self.view, at)
        if rank > MAX_RANK:
            raise InvalidInput(f"rank {rank} is over {MAX_RANK}")
        shape = DIMS_BY_RANK[rank].unpack_from(self.view, at + DIMS_AT)
        return offset, nbytes, shape

    def dims(self, slot: int, rank: int) -> tuple[int, ...]:
        if rank > MAX_RANK:
            raise InvalidInput(f"rank {rank} is over {MAX_RANK}")
        at = self.table_at + slot * ANCHOR_SLOT + DIMS_AT
        return DIMS_BY_RANK[rank].unpack_from(self.view, at)

    def release(self) -> None:
        with contextlib.suppress(BufferError):  # a result is being read
            self.payload.release()
        self.ring.release()


class Channel:
    """One process's end of a channel: the request ring and a ring for each anchor."""

    __slots__ = (
        "_words",
        "inputs",
        "layout",
        "memory",
        "outputs",
        "requests",
        "requests_at",
        "view",
    )

    def __init__(self, memory: SharedMemory, layout: ChannelLayout) -> None:
        self.memory = memory
        self.layout = layout
        self.view = memory.view
        #: Byte offset of the first request descriptor (`REQUEST_SLOT` bytes each).
        self.requests_at = layout.table_at
        self._words = self.view[: layout.payload_at].cast("Q")
        controls = [
            self.view[at : at + CONTROL_SIZE]
            for at in range(CONTROL_SIZE, layout.table_at, CONTROL_SIZE)
        ]
        rings = [RingCounters(control, layout.slots) for control in controls]
        self.requests = rings[0]
        table_at = layout.table_at + layout.slots * REQUEST_SLOT
        payload_at = layout.payload_at
        anchors: list[AnchorRing] = []
        sizes = layout.input_bytes + layout.output_bytes
        usual = layout.usual or sizes
        for ring, size, often in zip(rings[1:], sizes, usual, strict=True):
            at = (table_at, payload_at)
            anchors.append(AnchorRing(memory, self._words, ring, *at, size, often))
            table_at += layout.slots * ANCHOR_SLOT
            payload_at += page_aligned(size)
        self.inputs = anchors[: len(layout.input_bytes)]
        self.outputs = anchors[len(layout.input_bytes) :]

    @classmethod
    def create(cls, name: str, layout: ChannelLayout) -> Channel:
        """Make the segment; the client's side."""
        memory = SharedMemory.create(name, layout.size)
        channel = cls(memory, layout)
        channel._words[0] = MAGIC
        return channel

    @classmethod
    def attach(cls, fd: int, layout: ChannelLayout) -> Channel:
        """Map a segment that a client made; the device's side."""
        channel = cls(SharedMemory.attach(fd, layout.size), layout)
        channel.memory.detach_fd()
        if channel._words[0] != MAGIC:
            channel.close()
            raise ValueError("the segment is not a channel of this version")
        return channel

    def request_at(self, slot: int) -> int:
        """Byte offset of a request descriptor."""
        return self.requests_at + slot * REQUEST_SLOT

    def set_cancelled(self, slot: int, *, leaves: bool = False) -> None:
        """Mark the request in `slot` as cancelled (client, before it is released);
        if it `leaves`, its rows do not wait for a run either."""
        word = (self.layout.table_at + slot * REQUEST_SLOT) // 8 + _FLAGS_WORD
        self._words[word] = CANCELLED | LEAVES if leaves else CANCELLED

    def close(self) -> None:
        """Unmap; the rings must not be used after that."""
        for anchor in self.inputs + self.outputs:
            anchor.release()
        self.requests.release()
        self._words.release()
        self.memory.close()

    def __repr__(self) -> str:
        return (
            f"<Channel {len(self.inputs)} inputs, {len(self.outputs)} outputs, "
            f"{self.layout.slots} slots, requests {self.requests!r}>"
        )
