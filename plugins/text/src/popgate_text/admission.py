"""Limit of the texts that one process has in flight for one model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from engine import QueueFull

#: Weight of the newest request in the mean time per string.
_NEWEST: Final = 0.25
#: A request of more texts leaves this part of the room to others, unless it is alone.
_FEW: Final = 16
_PART: Final = 8
#: Seconds per string before any has ended.
_UNKNOWN: Final = 0.1


class TextAdmission:
    """Counts texts between their arrival and their answer.

    It measures the time per string, so that a refusal can say when to retry. `clock`
    gives seconds. Belongs to the event loop's thread.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.held = 0
        self._clock = clock
        #: Time at which the last request ended, or the first one in flight arrived.
        self._since = 0.0
        self._seconds = _UNKNOWN
        self._is_measured = False

    def acquire(self, texts: int) -> None:
        """Admit the texts of a request, all or none.

        Raises `QueueFull` with the time after which a retry would be admitted if no
        other texts arrive.
        """
        limit = self.limit
        if texts > _FEW and self.held:
            limit -= limit // _PART
        excess = self.held + texts - limit
        if excess > 0:
            msg = (
                f"{self.held} texts are in flight and the request has {texts}; "
                f"the limit is {limit} (max_concurrent_texts in the "
                "section [text])"
            )
            raise QueueFull(msg, max(0.001, excess * self._seconds))
        if not self.held:
            self._since = self._clock()
        self.held += texts

    def release(self, texts: int, *, answered: bool) -> None:
        """Record that the texts of a request have ended."""
        now = self._clock()
        if answered and texts:
            each = (now - self._since) / texts
            weight = _NEWEST if self._is_measured else 1.0
            self._seconds += weight * (each - self._seconds)
            self._is_measured = True
        self._since = now
        self.held -= texts

    def __repr__(self) -> str:
        return f"<TextAdmission {self.held} of {self.limit} texts>"
