"""Access log: one line for a request with its client, path, outcome and times.

The lines are records of the logger ``app.access`` with their fields as `extra`, so they
have the form of all log lines (`--log-format`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from app.sizes import parse_ratio

logger = logging.getLogger("app.access")

#: The most lines a second for failed requests, unless all are logged. A flood of bad
#: requests must not become a flood of lines.
MOST_A_SECOND = 200
#: The smallest share of answered requests that are logged, if any are.
_LEAST = 1e-12


class AccessLog:
    """Choice of the requests that get a line. For the event loop's thread.

    `ratio` is the result of `parse_ratio`. A sample is every n-th answered request:
    `left` counts the requests before the next one, so the others need no computation.
    Failed requests are always included.
    """

    def __init__(self, ratio: float | None = None, processes: int = 1) -> None:
        """Make the log of one of the `processes` that share a server's lines."""
        self._most = MOST_A_SECOND // processes
        self._second = 0
        self._lines = 0
        self._left_out = 0
        self.set_ratio(ratio)

    @classmethod
    def of(cls, text: str, workers: int) -> AccessLog:
        """Make the log of a server with this number of workers; `parse_ratio` reads the
        text.

        Several workers have a supervisor beside them.
        """
        return cls(parse_ratio(text), workers + (workers > 1))

    def set_ratio(self, ratio: float | None) -> None:
        """Set the share of requests to log."""
        self.ratio = ratio
        self._due = 0.0
        self.left = self._count_to_next()

    def _count_to_next(self) -> int:
        """Return how many requests to skip before the next in the sample."""
        ratio = max(self.ratio or 0.0, _LEAST)
        count = max(1, math.ceil((1.0 - self._due) / ratio))
        self._due += count * ratio - 1.0
        return count - 1

    @property
    def is_on(self) -> bool:
        return self.ratio is not None

    @property
    def samples(self) -> bool:
        """Return whether answered requests are logged, at least some."""
        return bool(self.ratio)

    def wants_answered(self) -> bool:
        """Count the next answered request; return whether it is in the sample."""
        if self.left:
            self.left -= 1
            return False
        self.left = self._count_to_next()
        return bool(self.ratio)

    def write(
        self,
        message: str,
        status: int,
        fields: Mapping[str, Any],
        ended: float | None = None,
    ) -> None:
        """Log one request, unless too many others have failed too.

        `ended` is the time of its end in seconds since 1970, by default now.
        """
        if status >= 400 and self.ratio != 1.0 and not self._may_write():
            return
        level = logging.INFO if status < 500 else logging.WARNING
        if not logger.isEnabledFor(level):
            return
        # This does the work of `logger.log`, which would also search for the calling
        # line of code.
        record = logger.makeRecord(logger.name, level, "", 0, message, (), None)
        vars(record).update(fields)
        if ended is not None:
            record.created, record.msecs = ended, ended % 1 * 1000
        logger.handle(record)

    def _may_write(self) -> bool:
        now = int(time.monotonic())
        if now != self._second:
            left_out, self._left_out = self._left_out, 0
            self._second, self._lines = now, 0
            if left_out:
                logger.warning("%d more requests were omitted from the log", left_out)
        self._lines += 1
        if self._lines > self._most:
            self._left_out += 1
            return False
        return True

    def __repr__(self) -> str:
        return f"<AccessLog ratio={self.ratio}>"
