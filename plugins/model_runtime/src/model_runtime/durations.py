"""Durations, given as `timedelta` or as numbers.

If the original takes nanoseconds, a whole number means nanoseconds and a `float` means
seconds. If the original takes seconds, every number means seconds.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import SupportsFloat, SupportsIndex, TypeAlias

from model_runtime.arguments import WrongOption, unsigned
from popef.errors import WrongType
from popef.taking import got

Nanoseconds: TypeAlias = timedelta | float | SupportsIndex
Seconds: TypeAlias = timedelta | float
MAX_NS = 2**63 - 1
#: The original's maximum, in the whole microseconds of a `timedelta`.
MAX = timedelta(microseconds=MAX_NS // 1000)


def nanoseconds(duration: Nanoseconds) -> int:
    """Return a number of nanoseconds, at most the original's maximum."""
    if not isinstance(duration, timedelta | float) and isinstance(
        duration, SupportsIndex
    ):
        return min(unsigned(duration), MAX_NS)
    delta = seconds(duration)
    return MAX_NS if delta >= MAX else delta // timedelta(microseconds=1) * 1000


def seconds(duration: Seconds | SupportsIndex) -> timedelta:
    """Return a `timedelta`, at most the original's maximum."""
    if not isinstance(duration, timedelta):
        if not isinstance(duration, SupportsFloat | SupportsIndex):
            raise WrongType(f"expected a timedelta or a number, {got(duration)}")
        value = float(duration)
        if math.isnan(value):
            raise WrongOption("a duration must be a number, got nan")
        limit = MAX.total_seconds()
        duration = MAX if value >= limit else timedelta(seconds=max(value, -1.0))
    if duration < timedelta():
        raise WrongOption(
            f"a duration must not be negative, got {duration.total_seconds():g} s"
        )
    return min(duration, MAX)


def delta(duration: Nanoseconds) -> timedelta:
    """Return a `timedelta`; a duration below its smallest unit is rounded up."""
    if isinstance(duration, timedelta | float):
        return seconds(duration)
    value = nanoseconds(duration)
    return MAX if value == MAX_NS else timedelta(microseconds=-(-value // 1000))
