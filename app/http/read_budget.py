"""How much of large bodies is read in one turn of the event loop.

libuv reads up to 32 times from a connection before it goes on to the next one, 256 KB
each time. That makes 8 MiB, and every page of them is new. So all connections that
bring large bodies share a number of bytes in each turn; the others wait for a later
turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

#: Bytes of a turn: about a millisecond.
MOST: Final = 1 << 20
#: Connections that go on in a turn: each reads once at least.
_AT_A_TIME: Final = 4


class ReadBudget:
    """What is left of a turn, and who waits for the next one; for the event loop's
    thread."""

    def __init__(self) -> None:
        self._left = MOST
        self._line: deque[Callable[[], None]] = deque()
        self._is_due = False

    def spend(self, size: int, loop: asyncio.AbstractEventLoop) -> bool:
        """Count bytes that were read; return whether that is enough for this turn."""
        self._left -= size
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._begin_turn, loop)
        return self._left <= 0

    def wait(self, read_on: Callable[[], None]) -> None:
        """Have `read_on` called in a later turn: after `spend` has returned True."""
        self._line.append(read_on)

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = MOST
        self._is_due = len(self._line) > _AT_A_TIME
        if self._is_due:
            loop.call_soon(self._begin_turn, loop)
        for _ in range(min(_AT_A_TIME, len(self._line))):
            self._line.popleft()()

    def __repr__(self) -> str:
        return f"<ReadBudget {self._left} bytes left, {len(self._line)} wait>"
