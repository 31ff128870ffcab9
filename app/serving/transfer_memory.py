"""Limit of the memory of all large bodies and answers in transit.

The size of each body and answer is limited, and so is the time for which it may stall.
Their number is not limited. Small ones are always accepted, because a connection has at
most one of each.
"""

from __future__ import annotations

import _thread
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from app.errors import TransferMemoryFull
from app.limits import Total
from engine import return_free_memory

#: Bodies and answers up to this size are never refused.
SMALL = 64 * 1024
#: After so many bytes less than at most before, malloc's free memory is returned. New
#: blocks of more than 64 MiB do not use it, so the process would have both.
_RETURNED_FROM: Final = 128 << 20
#: Seconds until then, unless 60 % of the limit was held (30 % by one of several
#: processes). All threads that use malloc wait for up to 30 ms, so it must be rare.
_RETURNED_AFTER: Final = 5.0

_GROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def half_of_memory() -> int:
    """Return half the bytes of memory that this process may use."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _GROUP_LIMITS:
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(found) // 2


class TransferMemory:
    """The bytes of all bodies and answers of a server; for the event loop's thread.

    Memory that threads use for a request is in separate reservations. `held` may exceed
    `limit` by the bytes of one read, and by finished answers. If other processes of the
    server hold bytes too, `limit` is the rest according to the last reading.
    """

    __slots__ = (
        "_is_returning", "_peak", "_reserved", "_total", "held", "limit", "most",
    )  # fmt: skip

    def __init__(self, limit: int = 0, total: Total | None = None) -> None:
        """Make the limit of `limit` bytes; 0 is half of the memory that this process
        may use. `total` is shared by all processes to which the limit applies.
        """
        #: The limit of all processes together. `limit` is that of this process now.
        self.most = self.limit = limit or half_of_memory()
        self._total = total
        self._reserved: set[Reservation] = set()
        self.held = self._peak = 0
        self._is_returning = False

    @property
    def reserved(self) -> int:
        """Return the bytes of all reservations. From any thread."""
        return sum([one.size for one in tuple(self._reserved)])

    def add(self, size: int) -> None:
        """Add bytes, or remove them."""
        self.held += size
        self.look()

    def look(self) -> None:
        """Read how much memory other processes leave. From any thread."""
        reserved = self.reserved if self._reserved else 0
        others, mine = 0, self.held + reserved
        if self._total is not None:
            others = self._total.publish(mine) - mine
        if mine > self._peak:
            self._peak = mine
        elif self._peak - mine > _RETURNED_FROM:
            kept = self.most * (0.6 if self._total is None else 0.3)
            is_urgent, self._peak = self._peak > kept, mine
            if is_urgent or not self._is_returning:
                wait = 0.0 if is_urgent else _RETURNED_AFTER
                # `Thread.start` would wait until the thread runs.
                with suppress(RuntimeError):  # no more threads
                    _thread.start_new_thread(self._return_free, (wait,))
                    self._is_returning |= not is_urgent
        self.limit = self.most - others - reserved

    def _return_free(self, wait: float) -> None:
        if wait:
            time.sleep(wait)
            self._is_returning = False
        return_free_memory()

    @property
    def used(self) -> int:
        """Return the present total of all processes."""
        mine = self.held + self.reserved
        return mine if self._total is None else self._total.publish(mine)

    @property
    def is_full(self) -> bool:
        self.look()
        return self.held > self.limit

    def check(self) -> None:
        """Raise `TransferMemoryFull` if the memory is full now."""
        if self.is_full:
            raise self.refusal()

    def reserve(self, size: int) -> Reservation:
        """Return a reservation of `size` bytes. Raises `TransferMemoryFull`."""
        one = Reservation(self, size)
        self._reserved.add(one)
        try:
            self.check()
        except TransferMemoryFull:
            self.release(one)
            raise
        return one

    def release(self, one: Reservation) -> None:
        """Give a reservation back. From any thread."""
        self._reserved.discard(one)
        self.look()

    def refusal(self) -> TransferMemoryFull:
        """Return the error for a client whose body exceeds the free memory."""
        return TransferMemoryFull(self.most)

    def __repr__(self) -> str:
        return f"<TransferMemory {self.held} of {self.limit} bytes>"


class Reservation:
    """Bytes that a thread allocates for a request while it works on it.

    Only that thread allocates more.
    """

    __slots__ = ("_memory", "size")

    def __init__(self, memory: TransferMemory, size: int) -> None:
        self._memory = memory
        self.size = size

    def add(self, count: int) -> None:
        """Count this many more bytes, in any thread. Raises `TransferMemoryFull`."""
        self.size += count
        if self.size > SMALL:
            self._memory.check()

    def __repr__(self) -> str:
        return f"<Reservation of {self.size} bytes>"


class Share:
    """Share of one request."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: TransferMemory) -> None:
        self._memory = memory
        self.size = 0

    def add(self, count: int) -> None:
        """Count this many more bytes. Raises `TransferMemoryFull`."""
        self.size += count
        self._memory.held += count
        if self.size > SMALL and self._memory.is_full:
            raise self._memory.refusal()

    def set(self, count: int) -> None:
        """Set the number of bytes, even beyond the limit."""
        self._memory.add(count - self.size)
        self.size = count

    def give_back(self) -> None:
        """Return all bytes."""
        self._memory.add(-self.size)
        self.size = 0

    def __repr__(self) -> str:
        return f"<Share of {self.size} bytes>"
