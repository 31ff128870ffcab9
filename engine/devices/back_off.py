"""Pauses before a failed action is tried again."""

from __future__ import annotations

#: Seconds to wait after the first failure. Each further failure doubles the wait, and a
#: success resets it.
FIRST = 0.05
LAST = 10.0


class BackOff:
    """Counts failures in a row."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures = 0

    @property
    def seconds(self) -> float:
        """Return the seconds to wait before the next attempt; 0 if the last one
        succeeded.
        """
        if self._failures == 0:
            return 0.0
        return float(min(LAST, FIRST * 2 ** (self._failures - 1)))

    def begin(self) -> None:
        """Begin an attempt, which counts as failed until it has succeeded."""
        self._failures += 1

    def succeed(self) -> None:
        self._failures = 0

    def __repr__(self) -> str:
        return f"<BackOff {self.seconds:g} s after {self._failures} failures>"
