"""Turns of the event loop, shared by work that can wait.

The event loop handles every connection once in a turn, and each inference request waits
for the whole turn. Requests through ASGI, and requests behind an answer on their
connection, therefore share a fixed part of each turn, whatever their number.

Connections with large bodies share a number of reads of each turn. Otherwise libuv
reads a connection up to 32 times, 256 KB each time, before it reads the next one. That
makes 8 MiB, all in fresh pages of memory. Each read also waits for the interpreter's
lock, which takes a millisecond while another thread decodes. So the number falls while
turns are long.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

#: Seconds of each turn that such work shares.
PART: Final = 0.0003
#: The bytes of one read by uvloop.
READ: Final = 250 * 1024
#: The most reads of large bodies in a turn. They take about a millisecond.
MOST_READS: Final = 4
#: Seconds between two turns with reads. After a longer time, fewer reads follow.
LONG: Final = 0.001


class Turns:
    """Queues of work that can wait, and of large bodies. For the loop's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._line: deque[Callable[[], bool | None]] = deque()
        self._is_due = False
        self.reads = ReadBudget(clock)

    def wait(
        self, go_on: Callable[[], bool | None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Call `go_on` when its turn has come.

        It returns True if it did all its work itself. If it left work to a task, that
        work counts as the rest of this turn's part.
        """
        self._line.append(go_on)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._take_part, loop)

    def _take_part(self, loop: asyncio.AbstractEventLoop) -> None:
        end = self._clock() + PART
        try:
            while self._line.popleft()() and self._line and self._clock() < end:
                pass
        finally:
            self._is_due = bool(self._line)
            if self._is_due:
                loop.call_soon(self._take_part, loop)

    def __repr__(self) -> str:
        return f"<Turns, {len(self._line)} wait>"


class ReadBudget:
    """Reads left in a turn, and the connections that wait for the next turn.

    For the event loop's thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reads = MOST_READS
        self._left = self._reads * READ
        self._line: deque[Callable[[], None]] = deque()
        self._began = 0.0
        self._is_due = False

    def spend(self, size: int, loop: asyncio.AbstractEventLoop) -> bool:
        """Count bytes that were read; return whether this turn's reads are used up."""
        self._left -= size
        if not self._is_due:
            self._is_due = True
            self._began = self._clock()
            loop.call_soon(self._begin_turn, loop)
        return self._left <= 0

    def wait(self, read_on: Callable[[], None]) -> None:
        """Call `read_on` in a later turn, after `spend` has returned True."""
        self._line.append(read_on)

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._clock()
        is_long = now - self._began > LONG
        fewer, more = self._reads // 2, self._reads + 1
        self._reads = max(1, fewer) if is_long else min(more, MOST_READS)
        self._left = self._reads * READ
        self._began = now
        self._is_due = bool(self._line)  # their reads make the next turn long or short
        if self._is_due:
            loop.call_soon(self._begin_turn, loop)
        for _ in range(min(self._reads, len(self._line))):
            self._line.popleft()()

    def __repr__(self) -> str:
        return f"<ReadBudget of {self._reads} reads, {len(self._line)} wait>"
