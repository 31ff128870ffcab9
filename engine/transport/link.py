"""A link: the objects that a client process and a device process share for all models.

There are many models and most are idle, so waking is per link and not per model. One
eventfd, which all clients share, wakes the device. Another eventfd wakes the client.
Two rings in a segment of the link state which channels have news.

The map of the bytes
--------------------
    0        u64 magic
             u64 parked: 1 = the device sleeps, or is about to
             u64 backpressure: 1 = the device waits for room in an output of this client
             u64 alone: 1 = the client has one request in flight, and looks for its
                 result before it sleeps: the next one comes soon after
             u64 running: the replica that runs now, of any client; 0: none. Written
                 by the device, read when it is dead
             u64 busy: nanoseconds that the device has run programs, for any client,
                 without the present runs. Two runs at the same time count once
             u64 since: when the present run began (`time.monotonic_ns`); 0: none runs
             u64 succeeded: bit n is set if a run of a replica whose number is n modulo
                 64 has succeeded since its last failure. As `running`
             u64 aside: as `running`, of the run with large requests
                 (engine/worker/large_runs.py)
             u64 aside since: as `since`, of that run
    128      control block of the submission ring         (client → device)
    256      control block of the completion ring         (device → client)
    384      submissions, 8 bytes each: the channel's number, and `LARGE` with it if
                 the request is large
    …        completions, 64 bytes each:
               0 u32 channel, u32 outcome     1 u64 request
               2 u64 queue ns                 3 u64 compute ns
               4 u64 rows in the batch        5 u64 length of its longest row,
                                                  0 if its rows have no length
               6 u64 bytes of the text
    …        texts, 1024 bytes each: the message of a completion that failed

A wake-up takes the client more time than all its other work for a small request. So the
client writes to the wake-up eventfd only if the device sleeps. Neither side may miss
the other. The device sets `parked` and then checks the submissions once more. The
client publishes its submission and then checks `parked`. Both use a full fence in
between (`engine.transport.ring_buffer.full_fence`). The client that clears `parked`
writes to the eventfd.

A client never has more requests in flight than there are completion slots, so the
device never waits for room in the completion ring. Ordering: see
engine/transport/ring_buffer.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from struct import Struct
from time import monotonic_ns
from typing import Any, Final

from engine.errors import QueueFull
from engine.transport.outcome import DeviceOutcome
from engine.transport.ring_buffer import (
    CONTROL_SIZE,
    ORDERED_STORES,
    READ_WORD,
    RingCounters,
    full_fence,
)
from engine.transport.shared_memory import SharedMemory, page_aligned

MAGIC: Final = 0x35304B4E4C475020
#: Words of a link (see above).
PARKED: Final = 1
BACKPRESSURE: Final = 2
ALONE: Final = 3
RUNNING: Final = 4
BUSY: Final = 5
SINCE: Final = 6
SUCCEEDED: Final = 7
ASIDE: Final = 8
ASIDE_SINCE: Final = 9
#: The bit of a submission that marks a large request: it has more bytes than a thread
#: should copy while others wait (`bulk_copy.COPIED_AT_ONCE`), or more strings than the
#: device should convert meanwhile (`MANY_STRINGS` of runner/channel_rings.py).
LARGE: Final = 1 << 60
#: The most requests in flight over all models of one client and device.
SLOTS: Final = 16384
#: The most requests in flight over all channels. The other slots are for questions
#: (NEEDS_ROWS), which end no request.
MOST_OUTSTANDING: Final = SLOTS - 1024
_SUBMISSIONS_AT: Final = 3 * CONTROL_SIZE
_COMPLETION_SIZE: Final = 64
_TEXT_SIZE: Final = 1024
_COMPLETIONS_AT: Final = page_aligned(_SUBMISSIONS_AT + 8 * SLOTS)
_TEXTS_AT: Final = _COMPLETIONS_AT + _COMPLETION_SIZE * SLOTS
LINK_SIZE: Final = _TEXTS_AT + _TEXT_SIZE * SLOTS
_COMPLETION = Struct("<IIQQQQQQ")


#: (channel, outcome, request, queue ns, compute ns, rows in the batch, length of the
#: longest row, text or 0)
Completion = tuple[int, int, int, int, int, int, int, Any]


class Submissions(RingCounters):
    """The ring of submissions. Each slot has a channel's number, and `LARGE` or not."""

    __slots__ = ("_table",)

    def __init__(self, view: memoryview) -> None:
        super().__init__(view[CONTROL_SIZE : 2 * CONTROL_SIZE], SLOTS)
        self._table = view[_SUBMISSIONS_AT : _SUBMISSIONS_AT + 8 * SLOTS].cast("Q")

    def put(self, channel: int) -> bool:
        """Add a submission. Return False if the ring is full."""
        written = self.written
        if written - self._read_seen >= SLOTS:
            self._read_seen = self._control[READ_WORD]
            if written - self._read_seen >= SLOTS:
                return False
            if not ORDERED_STORES:
                full_fence()
        self._table[written % SLOTS] = channel
        if not ORDERED_STORES:
            full_fence()
        self._control[0] = self.written = written + 1
        return True

    def drain(self) -> Sequence[int]:
        """Return the channels that have one more request each, in order. A channel with
        several new requests occurs several times.
        """
        written, read = self._control[0], self._next
        if written == read:
            return ()
        if not ORDERED_STORES:
            full_fence()
        first = read % SLOTS
        end = first + written - read
        channels: list[int] = self._table[first:end].tolist()
        if end > SLOTS:
            channels += self._table[: end - SLOTS].tolist()
        if not ORDERED_STORES:
            full_fence()
        self._next = self.released = self._written_seen = written
        self._control[READ_WORD] = written
        return channels

    def release(self) -> None:
        self._table.release()
        super().release()


class Completions(RingCounters):
    """The ring of completions, with their texts."""

    __slots__ = ("_view",)

    def __init__(self, view: memoryview) -> None:
        super().__init__(view[2 * CONTROL_SIZE : 3 * CONTROL_SIZE], SLOTS)
        self._view = view

    def put(
        self,
        channel: int,
        outcome: DeviceOutcome,
        request: int,
        queue_ns: int = 0,
        compute_ns: int = 0,
        rows: int = 0,
        longest: int = 0,
        text: str = "",
    ) -> bool:
        """Report to the client how a request ended. Return False if the client broke
        the rule in the module's docstring.
        """
        written = self.written
        if written - self._read_seen >= SLOTS:
            self._read_seen = self._control[READ_WORD]
            if written - self._read_seen >= SLOTS:
                return False
            if not ORDERED_STORES:
                full_fence()
        slot = written % SLOTS
        length = 0
        if text:
            raw = text.encode(errors="replace")[:_TEXT_SIZE]
            length = len(raw)
            start = _TEXTS_AT + slot * _TEXT_SIZE
            self._view[start : start + length] = raw
        at = _COMPLETIONS_AT + slot * _COMPLETION_SIZE
        _COMPLETION.pack_into(
            self._view, at,
            channel, outcome, request, queue_ns, compute_ns, rows, longest, length,
        )  # fmt: skip
        if not ORDERED_STORES:
            full_fence()
        self._control[0] = self.written = written + 1
        return True

    def drain(self, into: deque[Completion]) -> None:
        """Append all completions since the last call.

        If this raises for lack of memory, the next call returns them again, and some of
        them twice.
        """
        written = self._control[0]
        if not ORDERED_STORES:
            full_fence()
        for number in range(self._next, written):
            slot = number % SLOTS
            at = _COMPLETIONS_AT + slot * _COMPLETION_SIZE
            completion = _COMPLETION.unpack_from(self._view, at)
            length = completion[7]
            if length:
                completion = (*completion[:7], self._text(slot, length))
            into.append(completion)
        if not ORDERED_STORES:
            full_fence()
        self._next = self.released = self._written_seen = written
        self._control[READ_WORD] = written

    def _text(self, slot: int, length: int) -> str:
        start = _TEXTS_AT + slot * _TEXT_SIZE
        raw = self._view[start : start + min(length, _TEXT_SIZE)]
        return bytes(raw).decode(errors="replace")


class Link:
    """One process's end of the two rings of a link."""

    __slots__ = ("completions", "gone", "memory", "submissions", "view", "words")

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        self.view = memory.view
        #: Whether the client process has ended. Only the device's side sets this.
        self.gone = False
        #: The words `PARKED`, `RUNNING` and so on. The module's docstring states who
        #: writes which.
        self.words = self.view[:CONTROL_SIZE].cast("Q")
        self.submissions = Submissions(self.view)
        self.completions = Completions(self.view)

    @classmethod
    def create(cls) -> Link:
        memory = SharedMemory.create("link", LINK_SIZE)
        header = memory.view[:8].cast("Q")
        header[0] = MAGIC
        header.release()
        return cls(memory)

    @classmethod
    def attach(cls, fd: int) -> Link:
        memory = SharedMemory.attach(fd, LINK_SIZE)
        memory.detach_fd()
        if int.from_bytes(memory.view[:8], "little") != MAGIC:
            memory.close()
            raise ValueError("the segment is not a link of this version")
        return cls(memory)

    @property
    def busy_ns(self) -> int:
        """Return how long the device has run programs, including the present run.

        Between two writes of the device the value may be slightly too small.
        """
        words = self.words
        since = words[ASIDE_SINCE] or words[SINCE]
        busy = words[BUSY]
        if since and since == (words[ASIDE_SINCE] or words[SINCE]):
            busy += max(0, monotonic_ns() - since)
        return busy

    def submit(self, channel: int) -> bool:
        """Tell the device that the channel has one more request (with `LARGE`: a large
        one). Return whether the device must be woken.

        Raises QueueFull.
        """
        if not self.submissions.put(channel):
            raise QueueFull("the device has too many requests in flight")
        # Submit first, and check `parked` second: see the module's docstring.
        full_fence()
        words = self.words
        if not words[PARKED]:
            return False
        words[PARKED] = 0
        return True

    def close(self) -> None:
        self.words.release()
        self.submissions.release()
        self.completions.release()
        self.memory.close()

    def __repr__(self) -> str:
        return (
            f"<Link submissions {self.submissions!r}, completions {self.completions!r}>"
        )
