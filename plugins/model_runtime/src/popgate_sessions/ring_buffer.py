"""`SpscRingBuffer`: a ring of objects between two threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from engine.errors import InvalidConfig, QueueClosed, WrongProcess
from engine.fork_guard import fork_guard

T = TypeVar("T")

#: The most buffers of a ring. The ring makes all of them at once.
MOST_BUFFERS = 1 << 24
#: Seconds after which a wait checks whether it should go on.
_LOOK_AGAIN = 0.2
#: The longest single wait in seconds, because the system does not support waits of
#: centuries.
_LONGEST_WAIT = 3600.0


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
        if num_buffers < 1:
            raise InvalidConfig(
                f"a ring must have at least one slot, got {num_buffers}"
            )
        self._buffers = [make() for _ in range(num_buffers)]
        self.num_buffers = num_buffers
        self.label = label
        self._timeout_cb = timeout_cb
        self._timeout_ns = timeout_ns
        #: The buffers published since the beginning. Only the writer changes it.
        self._written = 0
        #: The buffers released, and those locked for reading. Only the reader changes
        #: them.
        self._released = self._next = 0
        #: Whether a buffer is being filled, because `write_lock` has returned one.
        self.write_locked = False
        self._is_valid = True
        self._waiting = threading.Condition()

    # -- the writer

    def write(self, obj: T) -> None:
        """Write `obj` into the next slot: `write_lock`, copy, `write_complete`."""
        self.write_lock()
        if self._is_valid:
            self._buffers[self._written % self.num_buffers] = obj
            self.write_complete()

    def try_write_lock(self) -> T | None:
        """Return the buffer to fill, or None if the ring is full."""
        return self._buffer_of(self._written) if self._try_write_lock() else None

    def _try_write_lock(self) -> bool:
        if self._fork_guard.left:
            raise self._not_ours()
        has_room = self._written - self._released < self.num_buffers
        self.write_locked = self.write_locked or has_room
        return has_room

    def write_lock(self) -> T:
        """Wait for a free buffer or invalidation. A repeated call returns the same
        buffer.
        """
        while not self._try_write_lock() and self._is_valid:
            self._wait(self.write_available, None)
        return self._buffer_of(self._written)

    def write_complete(self) -> None:
        """Publish the buffer that is write-locked."""
        if not self.write_locked:
            if self._fork_guard.left:
                raise self._not_ours()
            if not self._is_valid:
                return
            raise QueueClosed(f"{self.label}: write_complete without write_lock")
        self.write_locked = False
        self._written += 1
        self._notify()

    def write_available(self) -> bool:
        """Return whether `write_lock` would return at once."""
        return self.write_locked or self._written - self._released < self.num_buffers

    # -- the reader

    def try_read_lock(self) -> T | None:
        """Return the next published buffer, or None if there is none."""
        if self._fork_guard.left:
            raise self._not_ours()
        if not self.read_available():
            return None
        self._next += 1
        return self._buffer_of(self._next - 1)

    def read_lock(self, alive: Callable[[], None] | None = None) -> T:
        """Wait for data, invalidation or (while buffers are held) `read_reset`.

        `alive` is called regularly meanwhile. Its exception ends the wait.
        """
        if self._fork_guard.left:
            raise self._not_ours()
        timeout = self._timeout_ns / 1e9 if self._timeout_cb is not None else 0.0
        due = time.monotonic() + timeout if timeout else float("inf")
        longest = _LONGEST_WAIT if alive is None else _LOOK_AGAIN
        while not self.read_available():
            if not self._is_valid:
                return self._buffers[0]
            left = min(longest, max(0.0, due - time.monotonic()))
            if self._wait(self.read_available, left):
                continue
            if alive is not None:
                alive()
            if time.monotonic() >= due and self._timeout_cb is not None:
                self._timeout_cb(self)
                due = time.monotonic() + timeout
        self._next += 1
        return self._buffer_of(self._next - 1)

    def read_complete(self) -> None:
        """Release the oldest read-locked buffer."""
        if self._next == self._released:
            if self._fork_guard.left:
                raise self._not_ours()
            if not self._is_valid:
                return
            raise QueueClosed(f"{self.label}: read_complete without read_lock")
        self._released += 1
        self._notify()

    def read_reset(self) -> None:
        """Unlock all read-locked buffers, putting them back at the front."""
        self._next = self._released
        self._notify()

    def read_available(self) -> bool:
        return self._next != self._written

    # -- both

    def is_valid(self) -> bool:
        return self._is_valid

    def invalidate(self) -> None:
        """Make every call return immediately. Callers must ignore the results."""
        self._is_valid = False
        self._notify()

    def reset(self) -> None:
        """Reset to the initial state. Neither side may use the ring meanwhile."""
        if self._fork_guard.left:
            raise self._not_ours()
        self._written = self._released = self._next = 0
        self._is_valid, self.write_locked = True, False

    def state(self, prefix: str = "") -> str:
        """Return the state as a line for a log (Model Runtime: `getState`)."""
        filled, held = self._written - self._released, self._next - self._released
        state = "" if self._is_valid else ", invalid"
        return (
            f"{prefix}{self.label}: <ring {filled}/{self.num_buffers} filled, "
            f"{held} held, {self._written} written{state}>"
        )

    def _buffer_of(self, number: int) -> T:
        return self._buffers[number % self.num_buffers]

    def _not_ours(self) -> WrongProcess:
        return self._fork_guard.error(f"{self.label} SpscRingBuffer".strip())

    def _notify(self) -> None:
        if self._fork_guard.left:  # a thread of the parent may have held the lock
            raise self._not_ours()
        with self._waiting:
            self._waiting.notify_all()

    def _wait(self, ready: Callable[[], bool], seconds: float | None) -> bool:
        with self._waiting:
            return self._waiting.wait_for(
                lambda: ready() or not self._is_valid, seconds
            )

    def __repr__(self) -> str:
        return f"<SpscRingBuffer {self.state()}>"
