"""Numbers of requests, each unique among all processes that feed a device."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

#: The bits of a request's number below the bits of its process.
PROCESS_SHIFT = 40


def _first() -> int:
    return (os.getpid() << PROCESS_SHIFT) + 1


_numbers = itertools.count(_first())


def _renew() -> None:
    """Start new numbers in a forked child, because it is another process."""
    global _numbers
    _numbers = itertools.count(_first())


os.register_at_fork(after_in_child=_renew)


def request_numbers() -> Iterator[int]:
    """Yield numbers that no request of any process has, for use in this one."""
    return _numbers


def process_of(number: int) -> int:
    """Return the process that made the request with this number."""
    return number >> PROCESS_SHIFT
