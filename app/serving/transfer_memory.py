"""Limit of the memory of all large bodies and answers in transit.

Each is bounded anyway, and so is the time for which it stands still; but there may be
any number of them. Small ones are served in any case: a connection has one of each.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from app.errors import TransferMemoryFull
from app.observe.shared_totals import Total

#: Bodies and answers up to this size are never refused.
SMALL = 64 * 1024

#: Bytes that a byte of a document takes while it is decoded, besides itself: ``0,`` is
#: eight of FP64, once in blocks and once joined.
DECODED = 4

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

    `held` may pass `limit` by what came at once, and by the answers that were made.
    Where other processes of the server have some too, `limit` is what they leave, as of
    the last time that this one looked.
    """

    __slots__ = ("_most", "_total", "held", "limit")

    def __init__(self, limit: int = 0, total: Total | None = None) -> None:
        """Make the limit of `limit` bytes; 0 is half of the memory that this process
        may use. `total` is of all processes for which the limit holds.
        """
        self.limit = self._most = limit or half_of_memory()
        self._total = total
        self.held = 0

    def add(self, size: int) -> None:
        """Add bytes, or remove them."""
        self.held += size
        if self._total is not None:
            others = self._total.tell(self.held) - self.held
            self.limit = self._most - others

    @property
    def most(self) -> int:
        """Return the limit of all processes together."""
        return self._most

    @property
    def used(self) -> int:
        """Return the present total of all processes."""
        return self.held if self._total is None else self._total.tell(self.held)

    @property
    def is_full(self) -> bool:
        self.add(0)
        return self.held > self.limit

    def check(self) -> None:
        """Raises `TransferMemoryFull` if it is so now."""
        if self.is_full:
            raise self.refusal()

    @contextlib.contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Count bytes for the duration of the block. Raises `TransferMemoryFull`."""
        self.add(size)
        try:
            self.check()
            yield
        finally:
            self.add(-size)

    def refusal(self) -> TransferMemoryFull:
        """Return the error for a client whose body finds no room."""
        return TransferMemoryFull(self._most)

    def __repr__(self) -> str:
        return f"<TransferMemory {self.held} of {self.limit} bytes>"


class Share:
    """Share of one request."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: TransferMemory) -> None:
        self._memory = memory
        self.size = 0

    def take(self, count: int) -> None:
        """Counts so many bytes more. Raises `TransferMemoryFull`."""
        self.size += count
        self._memory.held += count
        if self.size > SMALL and self._memory.is_full:
            raise self._memory.refusal()

    def set(self, count: int) -> None:
        """Count so many bytes in all, whether there is room for them or not."""
        self._memory.add(count - self.size)
        self.size = count

    def give_back(self) -> None:
        """Give everything back."""
        self._memory.add(-self.size)
        self.size = 0

    def __repr__(self) -> str:
        return f"<Share of {self.size} bytes>"
