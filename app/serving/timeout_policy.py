"""Timeout of a request: its own, or the default that applies."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.errors import InvalidRequest
from app.sizes import decimal

# The longest timeout that a request may state: it must fit into 64 bits of nanoseconds.
MAX_TIMEOUT = 1e6


@dataclass(frozen=True, slots=True)
class TimeoutPolicy:
    """Timeout of a request whose model is not in memory yet.

    `asked` is the request's own timeout in seconds, or None. `default` applies if
    neither the request nor its model has one. The time counts from `began`, a
    `time.monotonic()`.
    """

    default: float
    asked: float | None = None
    priority: int = 0
    began: float = field(default_factory=lambda: time.monotonic())

    def left(self, timeout: float) -> float:
        """Return the seconds until the deadline of a request with this timeout."""
        return max(0.0, self.began + min(timeout, MAX_TIMEOUT) - time.monotonic())


def header_timeout(headers: Mapping[bytes, bytes]) -> float | None:
    """Return the seconds in the header ``X-Request-Timeout``.

    Raises `InvalidRequest`.
    """
    value = headers.get(b"x-request-timeout")
    if value is None:
        return None
    seconds = decimal(value)
    if not 0 < seconds < math.inf:
        shown = value[:40].decode("ascii", "backslashreplace")
        msg = f"X-Request-Timeout must be a number of seconds above 0, got '{shown}'"
        raise InvalidRequest(msg)
    return seconds
