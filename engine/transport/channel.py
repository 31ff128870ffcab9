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
    0 request   the number of the request, which the client sets
    1 rows      units (engine/model/batch_plan.py), or 0 if requests are not counted
    2 flags     1 = cancelled (the client may set it until the slot is released)
                2 = only fills up an incomplete run (engine/runner/flushing.py)
                4 = is not delayed for the sake of a fuller batch
                8 = its rows leave an incomplete run, whatever the policy (with 1)
                16 = its optional outputs are wanted (engine/model/ragged.py)
    3 deadline  CLOCK_MONOTONIC nanoseconds, 0 = none
    4 submitted CLOCK_MONOTONIC nanoseconds
    5 begun     1 when a run has taken it, if requests do not run in their order
                (the client writes 0, then the device 1)

Anchor descriptors: see engine/transport/anchor_ring.py.

The rules
---------
- The client fills the payload, then the anchor descriptors. It publishes the anchor
  rings, and last the request ring. So a device that sees the request sees its data.
- The device publishes the output rings, then the completion (engine/transport/link.py).
- Data is released in the order in which it was claimed. The device releases inputs when
  the batch that used them has run. The client copies outputs out as soon as their
  completion comes, and then releases them.
- If a request does not supply an anchor, the anchor's ring has no descriptor for it.
  The number in word 0 of the next descriptor shows this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from engine.transport.anchor_ring import ANCHOR_SLOT, AnchorRing
from engine.transport.ring_buffer import CONTROL_SIZE, RingCounters
from engine.transport.shared_memory import PAGE, SharedMemory, page_aligned

MAGIC: Final = 0x31304E4843475020  # " PGCHN01" read as a number
REQUEST_SLOT: Final = 64
CANCELLED: Final = 1
FILLS_UP: Final = 2
UNDELAYED: Final = 4
LEAVES: Final = 8
WANTS_ALL: Final = 16

#: The most slots of a channel, and the most bytes of an anchor.
MAX_SLOTS: Final = 1 << 20
MAX_PAYLOAD: Final = 1 << 40
_FLAGS_WORD: Final = 2
_BEGUN_WORD: Final = 5
REQUEST = Struct("<5Q")


@dataclass(frozen=True, slots=True)
class ChannelLayout:
    """The sizes that both sides agree on. Everything else follows from them.

    `usual` is the payload memory of each anchor that is normally used, first of the
    inputs and then of the outputs. The rest is for larger records. If `usual` is empty,
    all memory is normally used.
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

    def to_message(self) -> Any:
        sizes = (self.input_bytes, self.output_bytes, self.usual)
        return [self.slots, *map(list, sizes)]

    @classmethod
    def from_message(cls, message: Sequence[object]) -> ChannelLayout:
        slots, *groups = message
        if len(groups) != 3 or not (isinstance(slots, int) and 1 <= slots <= MAX_SLOTS):
            raise ValueError(f"layout of a channel: {message!r}")
        sizes = []
        for group in groups:
            if not (isinstance(group, list | tuple) and len(group) <= 65536):
                raise ValueError("anchors of a channel")
            if not all(isinstance(n, int) and PAGE <= n <= MAX_PAYLOAD for n in group):
                raise ValueError(f"payload sizes of a channel: {group!r}")
            sizes.append(tuple(group))
        inputs, outputs, usual = sizes
        if len(usual) not in (0, len(inputs) + len(outputs)):
            raise ValueError(f"usual sizes of a channel: {usual!r}")
        return cls(slots, inputs, outputs, usual)


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
        requests, *others = controls
        self.requests = RingCounters(requests, layout.slots)
        table_at = layout.table_at + layout.slots * REQUEST_SLOT
        payload_at = layout.payload_at
        anchors: list[AnchorRing] = []
        sizes = layout.input_bytes + layout.output_bytes
        usual = layout.usual or sizes
        for control, size, often in zip(others, sizes, usual, strict=True):
            ring = AnchorRing(
                control, layout.slots, memory, self._words,
                table_at, payload_at, size, often,
            )  # fmt: skip
            anchors.append(ring)
            table_at += layout.slots * ANCHOR_SLOT
            payload_at += page_aligned(size)
        self.inputs = anchors[: len(layout.input_bytes)]
        self.outputs = anchors[len(layout.input_bytes) :]

    @classmethod
    def create(cls, name: str, layout: ChannelLayout) -> Channel:
        """Make the segment. For the client's side."""
        memory = SharedMemory.create(name, layout.size)
        channel = cls(memory, layout)
        channel._words[0] = MAGIC
        return channel

    @classmethod
    def attach(cls, fd: int, layout: ChannelLayout) -> Channel:
        """Map a segment that a client made. For the device's side."""
        channel = cls(SharedMemory.attach(fd, layout.size), layout)
        channel.memory.detach_fd()
        if channel._words[0] != MAGIC:
            channel.close()
            raise ValueError("the segment is not a channel of this version")
        return channel

    def request_at(self, slot: int) -> int:
        """Return the byte offset of a request descriptor."""
        return self.requests_at + slot * REQUEST_SLOT

    def set_cancelled(self, slot: int, *, leaves: bool = False) -> None:
        """Mark the request in `slot` as cancelled. The client may do so until the slot
        is released. If the request `leaves`, its rows do not wait for a run either.
        """
        word = (self.layout.table_at + slot * REQUEST_SLOT) // 8 + _FLAGS_WORD
        self._words[word] = CANCELLED | LEAVES if leaves else CANCELLED

    def set_begun(self, slot: int, begun: int) -> None:
        """Record whether a run has taken the request in `slot`."""
        self._words[self.request_at(slot) // 8 + _BEGUN_WORD] = begun

    def is_begun(self, slot: int) -> bool:
        """Return whether a run has taken the request in `slot`."""
        return self._words[self.request_at(slot) // 8 + _BEGUN_WORD] != 0

    def close(self) -> None:
        """Unmap the memory. The rings must not be used afterwards."""
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
