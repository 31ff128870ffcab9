"""The order in which the rows of requests with many texts reach the engine."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final, Generic, Protocol, TypeVar

#: The most rows in the engine of all requests that have more rows. They share them.
IN_FLIGHT: Final = 256
#: Rows of a request that go to the engine without waiting for a turn.
AT_FIRST: Final = 8
#: Seconds of each turn of the event loop for the rows of all requests.
_PART: Final = 0.002


class Fed(Protocol):
    """A request with rows. `running` are those in the engine."""

    done: bool

    @property
    def running(self) -> dict[int, Any]: ...
    @property
    def rows_left(self) -> int:
        """Return the number of rows that the engine has not had yet."""

    def feed(self) -> bool:
        """Give the engine the next row; return whether it took the row.

        Raises an error after which the request cannot go on.
        """

    def resolve(self, error: Exception | None = None) -> None:
        """End the request."""


R = TypeVar("R", bound=Fed)


class Feeding(Generic[R]):
    """Requests with more rows than the engine should have at once.

    They have turns, one row each. So a request with many rows holds up neither the
    event loop nor the rows of others. For the event loop's thread.
    """

    def __init__(self) -> None:
        self._unfinished: set[R] = set()
        self._line: dict[R, None] = {}
        self._is_due = False

    def begin(self, run: R) -> None:
        """Give the engine the first rows. Raises the errors of `Fed.feed`."""
        for _ in range(AT_FIRST):
            if run.done or not run.rows_left or not run.feed():
                break
        if run.rows_left and not run.done:
            self._unfinished.add(run)
            self.go_on(run)

    def go_on(self, run: R) -> None:
        """Give the engine more rows soon, if the request has any."""
        if run not in self._unfinished:
            return
        self._line[run] = None
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._take_part)

    def leave(self, run: R) -> None:
        """Forget a request that has ended."""
        self._unfinished.discard(run)
        self._line.pop(run, None)

    def _take_part(self) -> None:
        line = deque(self._line)
        self._line.clear()
        end = time.monotonic() + _PART
        while line and time.monotonic() < end:
            run = line.popleft()
            if self._give(run):
                line.append(run)
        self._line = dict.fromkeys(line) | self._line
        self._is_due = bool(self._line)
        if self._is_due:
            asyncio.get_running_loop().call_soon(self._take_part)

    def _give(self, run: R) -> bool:
        """Give the engine a row; return whether it may have another one now."""
        share = max(1, IN_FLIGHT // max(1, len(self._unfinished)))
        try:
            if run.done or len(run.running) >= share or not run.feed():
                return False
        except Exception as error:
            run.resolve(error)
            return False
        if not run.rows_left:
            self.leave(run)
            return False
        return not run.done

    def __repr__(self) -> str:
        return f"<Feeding {len(self._unfinished)} requests>"
