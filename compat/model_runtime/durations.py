"""Durations that the original has in nanoseconds."""

from __future__ import annotations

from datetime import timedelta
from typing import SupportsIndex, TypeAlias

Nanoseconds: TypeAlias = int | timedelta
MAX_NS = 2**63 - 1


def nanoseconds(duration: Nanoseconds) -> int:
    """As a number, of which the original's maximum is the largest."""
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1) * 1000
    # What is no number is refused where it is used, which knows for what it is.
    return min(duration, MAX_NS) if isinstance(duration, SupportsIndex) else duration
