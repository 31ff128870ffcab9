"""`SpscRingBuffer`: one producer, one consumer, fixed slots, no locks.

The map of the bytes
--------------------
A ring needs two words of shared memory, on separate cache lines, so that the two sides
do not contend for one line. It also needs `capacity` slots: a table of descriptors in
shared memory, or a list of objects if both sides are threads.

    control + 0     u64  written   slots published since the beginning    producer
    control + 8     u64  valid     0 = invalidated                        either side
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
- The consumer may hold several slots at once by repeated calls of `read_lock`. It
  releases them oldest first (`read_complete`), or puts all of them back (`read_reset`).

The ordering claim
------------------
A counter is stored and loaded as one aligned 8-byte item of a `memoryview` of format
"Q". CPython copies it with an 8-byte memcpy, which is one `mov`. On x86-64 stores
become visible in program order, and loads are not reordered with older loads. So a side
that sees `written == n` also sees the slots before it. On other processors (64-bit Arm)
the stores alone do not guarantee this. There `_fence` takes and frees a lock between
the two steps. That is an acquire and a release operation in every CPython build, and
costs about 60 ns. `tests/stress/test_ring_stress.py` defends the claim with two
processes and rings of 1 to 1,000 slots. It fills every slot with a pattern that depends
on the slot's number.

If a side dies between the two steps, the slot is never published (or never released).
The other side then sees a ring that is empty (or full) for ever. The control socket of
the device process shows that the side has died.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from engine.errors import EngineBug, InvalidConfig, QueueClosed, WrongProcess
from engine.fork_guard import fork_guard

CONTROL_SIZE = 128
#: Words of the control block other than 0 and 1.
READ_WORD: Final = 8
_TAKEN_WORD: Final = READ_WORD + 1

T = TypeVar("T")

#: The most buffers of a ring of objects. The ring makes all of them at once.
MOST_BUFFERS = 1 << 24

#: Seconds after which a wait checks whether it should go on.
_LOOK_AGAIN = 0.2
#: The longest single wait in seconds, because the system does not support waits of
#: centuries.
_LONGEST_WAIT = 3600.0

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


def _no_fence() -> None:
    pass


#: True if the processor keeps plain stores and loads in order (see above).
ORDERED_STORES = platform.machine().lower() in ("x86_64", "amd64")
_fence = _no_fence if ORDERED_STORES else full_fence


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
        self._read_counters()

    def _read_counters(self) -> None:
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
                _fence()
        return self.written % self.capacity

    def write_complete(self, count: int = 1) -> None:
        """Publish the slot (or the next `count` slots) that were filled."""
        if not ORDERED_STORES:
            _fence()
        self.written += count
        self._control[0] = self.written

    def write_slot(self, ahead: int) -> int:
        """Return the slot `ahead` places after the next one, without a
        check for room.
        """
        return (self.written + ahead) % self.capacity

    @property
    def write_available(self) -> int:
        """Return how many slots can be filled now."""
        self._read_seen = self._control[READ_WORD]
        return self.capacity - (self.written - self._read_seen)

    def unreleased(self) -> tuple[int, int]:
        """Return how many published slots are not yet released, and the oldest of them
        (producer side).
        """
        read = self._read_seen = self._control[READ_WORD]
        if not ORDERED_STORES:
            _fence()
        return self.written - read, read % self.capacity

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
                _fence()
        slot = self._next % self.capacity
        self._next += 1
        return slot

    def skip(self) -> None:
        """Release the next slot, which was read but not locked. No slot may be
        read-locked.
        """
        if not ORDERED_STORES:
            _fence()
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
            _fence()
        self.released += count
        self._control[READ_WORD] = self.released

    def complete_held(self) -> None:
        """Release all read-locked slots."""
        if not ORDERED_STORES:
            _fence()
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
    def read_available(self) -> bool:
        if self._next == self._written_seen:
            self._written_seen = self._control[0]
        return self._next != self._written_seen

    @property
    def has_news(self) -> bool:
        """Return whether there is something to read. Any thread may call it, because it
        does not store the other side's counter as `read_available` does.
        """
        return self._control[0] != self._next

    # -- both

    @property
    def is_valid(self) -> bool:
        return self._control[1] == 0

    def invalidate(self) -> None:
        self._control[1] = 1

    def reset(self) -> None:
        """Make the ring empty and valid again. Neither side may use it meanwhile."""
        self._control[0] = self._control[1] = self._control[READ_WORD] = 0
        self._control[_TAKEN_WORD] = 0
        self._read_counters()

    def release(self) -> None:
        """Release the memory. The ring cannot be used afterwards."""
        self._control.release()

    def __repr__(self) -> str:
        written, read = self._control[0], self._control[READ_WORD]
        held = self._next - self.released
        state = "" if self.is_valid else ", invalid"
        return (
            f"<ring {written - read}/{self.capacity} filled, {held} held, "
            f"{written} written{state}>"
        )


class SpscRingBuffer(Generic[T]):
    """A ring of objects between two threads (Model Runtime: `SpscRingBuffer`).

    One thread writes and one reads. `make` makes the `num_buffers` objects, which are
    always reused. The writer fills the object that `write_lock` returns. While a read
    waits, `timeout_cb(ring)` is called after each `timeout_ns` nanoseconds (0: never).
    After `invalidate` nothing blocks any more, and callers must ignore what is
    returned, so check `is_valid` after each lock. A forked child cannot use its copy of
    the ring (WrongProcess), because the other side is in the parent.
    """

    def __init__(
        self,
        num_buffers: int,
        label: str = "",
        timeout_cb: Callable[[SpscRingBuffer[T]], None] | None = None,
        timeout_ns: int = 0,
        *,
        make: Callable[[], T],
    ) -> None:
        if timeout_ns < 0:
            raise InvalidConfig(f"timeout_ns must not be negative, got {timeout_ns}")
        self._fork_guard = fork_guard()
        if num_buffers > MOST_BUFFERS:
            raise InvalidConfig(
                f"a ring must have at most {MOST_BUFFERS} buffers, got {num_buffers}"
            )
        self._memory = bytearray(CONTROL_SIZE)
        self._ring = RingCounters(memoryview(self._memory), num_buffers)
        self._buffers = [make() for _ in range(num_buffers)]
        self._label = label
        self._timeout_cb = timeout_cb
        self._timeout_ns = timeout_ns
        self._write_locked = False
        self._waiting = threading.Condition()

    @property
    def num_buffers(self) -> int:
        return self._ring.capacity

    @property
    def label(self) -> str:
        return self._label

    @property
    def write_locked(self) -> bool:
        """Return whether a buffer is being filled, because `write_lock` has returned
        one.
        """
        return self._write_locked

    def write(self, obj: T) -> None:
        """Write `obj` into the next slot: `write_lock`, copy, `write_complete`."""
        self.write_lock()
        if self.is_valid():
            self._buffers[self._ring.write_slot(0)] = obj
            self.write_complete()

    def try_write_lock(self) -> T | None:
        """Return the buffer to fill, or None if the ring is full."""
        slot = self._lock_slot()
        return None if slot < 0 else self._buffers[slot]

    def _lock_slot(self) -> int:
        if self._fork_guard.left:
            raise self._not_ours()
        slot = self._ring.try_write_lock()
        self._write_locked = self._write_locked or slot >= 0
        return slot

    def write_lock(self) -> T:
        """Wait for a free buffer or invalidation. A repeated call returns the same
        buffer.
        """
        while self._lock_slot() < 0 and self.is_valid():
            self._wait(lambda: self._ring.write_available > 0, None)
        return self._buffers[self._ring.write_slot(0)]

    def write_complete(self) -> None:
        """Publish the buffer that is write-locked."""
        if not self._write_locked:
            if self._fork_guard.left:
                raise self._not_ours()
            if not self.is_valid():
                return
            raise QueueClosed(f"{self._label}: write_complete without write_lock")
        self._write_locked = False
        self._ring.write_complete()
        self._notify()

    def try_read_lock(self) -> T | None:
        """Return the next published buffer, or None if there is none."""
        if self._fork_guard.left:
            raise self._not_ours()
        slot = self._ring.try_read_lock()
        return None if slot < 0 else self._buffers[slot]

    def read_lock(self, alive: Callable[[], None] | None = None) -> T:
        """Wait for data, invalidation or (while buffers are held) `read_reset`.

        `alive` is called regularly meanwhile. Its exception ends the wait.
        """
        if self._fork_guard.left:
            raise self._not_ours()
        timeout = self._timeout_ns / 1e9 if self._timeout_cb is not None else 0.0
        due = time.monotonic() + timeout if timeout else float("inf")
        longest = _LONGEST_WAIT if alive is None else _LOOK_AGAIN
        while (slot := self._ring.try_read_lock()) < 0 and self.is_valid():
            left = min(longest, max(0.0, due - time.monotonic()))
            if self._wait(lambda: self._ring.read_available, left):
                continue
            if alive is not None:
                alive()
            if time.monotonic() >= due and self._timeout_cb is not None:
                self._timeout_cb(self)
                due = time.monotonic() + timeout
        return self._buffers[max(slot, 0)]

    def read_complete(self) -> None:
        """Release the oldest read-locked buffer."""
        if not self._ring.held:
            if self._fork_guard.left:
                raise self._not_ours()
            if not self.is_valid():
                return
            raise QueueClosed(f"{self._label}: read_complete without read_lock")
        self._ring.read_complete()
        self._notify()

    def read_reset(self) -> None:
        """Unlock all read-locked buffers, putting them back at the front."""
        self._ring.read_reset()
        self._notify()

    def read_available(self) -> bool:
        return self._ring.read_available

    def write_available(self) -> bool:
        """Return whether `write_lock` would return at once."""
        return self._write_locked or self._ring.write_available > 0

    def invalidate(self) -> None:
        """Make every call return immediately. Callers must ignore the results."""
        self._ring.invalidate()
        self._notify()

    def is_valid(self) -> bool:
        return self._ring.is_valid

    def reset(self) -> None:
        """Reset to the initial state. Neither side may use the ring meanwhile."""
        if self._fork_guard.left:
            raise self._not_ours()
        self._ring.reset()
        self._write_locked = False

    def state(self, prefix: str = "") -> str:
        """Return the state as a line for a log (Model Runtime: `getState`)."""
        return f"{prefix}{self._label}: {self._ring!r}"

    def _not_ours(self) -> WrongProcess:
        return self._fork_guard.error(f"{self._label} SpscRingBuffer".strip())

    def _notify(self) -> None:
        if self._fork_guard.left:  # a thread of the parent may have held the lock
            raise self._not_ours()
        with self._waiting:
            self._waiting.notify_all()

    def _wait(self, ready: Callable[[], bool], seconds: float | None) -> bool:
        with self._waiting:
            return self._waiting.wait_for(
                lambda: ready() or not self.is_valid(), seconds
            )

    def __repr__(self) -> str:
        return f"<SpscRingBuffer {self.state()}>"
