"""What all large bodies and answers take that are on their way, and a bound on it.

Each is bounded anyway, and so is the time for which it stands still; but there may be
any number of them. Small ones are served in any case: a connection has one of each.
"""

from __future__ import annotations

import os
from pathlib import Path

from app.errors import TransferMemoryFull

#: Bodies and answers up to this size are never refused.
SMALL = 64 * 1024

_GROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def half_of_memory() -> int:
    """Half the bytes of memory that this process may use."""
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
    """

    __slots__ = ("held", "limit")

    def __init__(self, limit: int = 0) -> None:
        """`limit` bytes; 0 is half of the memory that this process may use."""
        self.limit = limit or half_of_memory()
        self.held = 0

    @property
    def is_full(self) -> bool:
        return self.held > self.limit

    def refusal(self) -> TransferMemoryFull:
        """What a client is told for whose body there is no room."""
        return TransferMemoryFull(self.limit)

    def __repr__(self) -> str:
        return f"<TransferMemory {self.held} of {self.limit} bytes>"


class Share:
    """What one request has of it."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: TransferMemory) -> None:
        self._memory = memory
        self.size = 0

    def take(self, count: int) -> None:
        """Counts so many bytes more. Raises `TransferMemoryFull`."""
        self.size += count
        self._memory.held += count
        if self._memory.is_full and self.size > SMALL:
            raise self._memory.refusal()

    def give_back(self) -> None:
        """All of it is over."""
        self._memory.held -= self.size
        self.size = 0

    def __repr__(self) -> str:
        return f"<Share of {self.size} bytes>"
