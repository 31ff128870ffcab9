"""`RingCounters`: one producer, one consumer, fixed slots, no locks.

The map of the bytes
--------------------
A ring needs two words of shared memory, on separate cache lines, so that the two sides
do not contend for one line. It also needs `capacity` slots: a table of descriptors in
shared memory.

    control + 0     u64  written   slots published since the beginning    producer
    control + 64    u64  read      slots released since the beginning     consumer
    control + 72    u64  taken     slots that the consumer is using       consumer
    control + 128   end of the control block
    slot i          at  i * slot_size  of the ring's slot table

The rules
---------
- Each counter has exactly one writer and only grows. 64 bits last 58,000 years at 10
  million slots a second. So "empty" is `written == read`, and "full" is `written - read
  == capacity`. No slot is wasted to distinguish the two.
- Slot of the n-th entry: `n % capacity`.
- Each side keeps a copy of the other's counter. It reads shared memory only if the ring
  is full (producer) or empty (consumer) according to the copy.
- Publishing has two steps in this order: fill the slot, then store `written`. Releasing
  has two as well: finish reading, then store `read`.
- The consumer may hold several slots at once by repeated calls of `try_read_lock`. It
  releases them oldest first (`read_complete`), or puts all of them back (`read_reset`).

The ordering claim
------------------
A counter is stored and loaded as one aligned 8-byte item of a `memoryview` of format
"Q". CPython copies it with an 8-byte memcpy, which is one `mov`. On x86-64 stores
become visible in program order, and loads are not reordered with older loads. So a side
that sees `written == n` also sees the slots before it. On other processors (64-bit Arm)
the stores alone do not guarantee this. There `full_fence` takes and frees a lock
between the two steps. That is an acquire and a release operation in every CPython
build, and costs about 60 ns. `tests/stress/test_ring_stress.py` defends the claim with
two processes and rings of 1 to 1,000 slots. It fills every slot with a pattern that
depends on the slot's number.

If a side dies between the two steps, the slot is never published (or never released).
The other side then sees a ring that is empty (or full) for ever. The control socket of
the device process shows that the side has died.
"""

from __future__ import annotations

import os
import platform
import threading
from typing import Final

from engine.errors import EngineBug, InvalidConfig

CONTROL_SIZE = 128
#: Words of the control block other than 0.
READ_WORD: Final = 8
_TAKEN_WORD: Final = READ_WORD + 1

_lock = threading.Lock()


def _renew_lock() -> None:
    """Make a new lock in a forked child, because a thread of the parent may have held
    the old one.
    """
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def full_fence() -> None:
    """Keep loads after this from overtaking stores before it, on any processor.

    Taking a lock is an atomic exchange in every CPython build.
    """
    with _lock:
        pass


#: True if the processor keeps plain stores and loads in order (see above).
ORDERED_STORES = platform.machine().lower() in ("x86_64", "amd64")


class RingCounters:
    """The two counters of a ring, and one side's copies of them.

    One object serves one process. The process uses one side, or both sides in two
    threads (one writes, one reads). No method blocks.
    """

    __slots__ = (
        "_control",
        "_next",
        "_read_seen",
        "_written_seen",
        "capacity",
        "released",
        "written",
    )

    def __init__(self, control: memoryview, capacity: int) -> None:
        if capacity < 1:
            raise InvalidConfig(f"a ring must have at least one slot, got {capacity}")
        self._control = control.cast("B")[:CONTROL_SIZE].cast("Q")
        self.capacity = capacity
        #: The number of published slots (producer side).
        self.written = self._read_seen = 0
        #: The number of released slots (consumer side).
        self.released = self._next = self._written_seen = 0
        self.written = self._written_seen = self._control[0]
        self.released = self._read_seen = self._next = self._control[READ_WORD]

    # -- producer

    def try_write_lock(self) -> int:
        """Return the slot to fill next, or -1 if the ring is full."""
        if self.written - self._read_seen >= self.capacity:
            self._read_seen = self._control[READ_WORD]
            if self.written - self._read_seen >= self.capacity:
                return -1
            if not ORDERED_STORES:
                full_fence()
        return self.written % self.capacity

    def write_complete(self, count: int = 1) -> None:
        """Publish the slot (or the next `count` slots) that were filled."""
        if not ORDERED_STORES:
            full_fence()
        self._control[0] = self.written = self.written + count

    def take_back(self) -> None:
        """Take back the slot that was published last. The other side must not know of
        it.
        """
        self._control[0] = self.written = self.written - 1

    @property
    def write_available(self) -> int:
        """Return how many slots can be filled now."""
        self._read_seen = self._control[READ_WORD]
        return self.capacity - (self.written - self._read_seen)

    @property
    def untaken(self) -> int:
        """Return how many published slots are not marked as being used (producer side).

        The answer holds only for a moment, because the other side goes on.
        """
        taken = max(self._control[_TAKEN_WORD], self._control[READ_WORD])
        return max(0, self.written - taken)

    def is_taken(self, slot: int) -> bool:
        """Return whether the other side is using a slot that is published and not
        released (producer side). As for `untaken`, the answer holds only for a moment.
        """
        read = self._control[READ_WORD]
        position = read + (slot - read) % self.capacity
        return bool(position < self._control[_TAKEN_WORD])

    # -- consumer

    def try_read_lock(self) -> int:
        """Return the next slot that is published and not held yet, or -1."""
        if self._next == self._written_seen:
            self._written_seen = self._control[0]
            if self._next == self._written_seen:
                return -1
            if not ORDERED_STORES:
                full_fence()
        slot = self._next % self.capacity
        self._next += 1
        return slot

    def skip(self) -> None:
        """Release the next slot, which was read but not locked. No slot may be
        read-locked.
        """
        if not ORDERED_STORES:
            full_fence()
        self._next += 1
        self.released += 1
        self._control[READ_WORD] = self.released

    def unlock_last(self) -> None:
        """Put back the slot that was read-locked last."""
        if self._next == self.released:
            raise EngineBug("no slot is read-locked")
        self._next -= 1

    def read_complete(self, count: int = 1) -> None:
        """Release the oldest read-locked slot (or the `count` oldest)."""
        if self.released + count > self._next:
            raise EngineBug("released more slots than were read-locked")
        if not ORDERED_STORES:
            full_fence()
        self.released += count
        self._control[READ_WORD] = self.released

    def complete_held(self) -> None:
        """Release all read-locked slots."""
        if not ORDERED_STORES:
            full_fence()
        self._control[READ_WORD] = self.released = self._next

    def read_reset(self) -> None:
        """Put all read-locked slots back at the front."""
        self._next = self.released

    def mark_in_use(self, but: int = 0) -> None:
        """Mark the read-locked slots as being used now, except the last ones."""
        self._control[_TAKEN_WORD] = self._next - but

    @property
    def held(self) -> int:
        """Return how many slots are read-locked."""
        return self._next - self.released

    @property
    def has_news(self) -> bool:
        """Return whether there is something to read. Any thread may call it, because it
        stores nothing.
        """
        return self._control[0] != self._next

    # -- both

    def release(self) -> None:
        """Release the memory. The ring cannot be used afterwards."""
        self._control.release()

    def __repr__(self) -> str:
        written, read = self._control[0], self._control[READ_WORD]
        held = self._next - self.released
        return (
            f"<ring {written - read}/{self.capacity} filled, {held} held, "
            f"{written} written>"
        )
