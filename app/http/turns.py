"""Whose turn it is, of what need not be done at once.

The event loop looks at every connection once in a turn, and whoever asks for inference
waits for all of it. So requests that go through ASGI, and those that stand behind an
answer on their connection, have a part of each turn together, however many they are.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

#: Seconds of each turn of the event loop.
PART: Final = 0.0003


class Turns:
    """The line of those requests; for the event loop's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._line: deque[Callable[[], bool | None]] = deque()
        self._is_due = False

    def wait(
        self, go_on: Callable[[], bool | None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Have `go_on` called when its turn has come. It returns True if that was all:
        what it leaves to a task is the rest of this part."""
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
