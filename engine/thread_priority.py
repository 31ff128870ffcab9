"""Threads that give way to others: those that do large work beside small requests."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

#: A thread of it has a third of a processor that it shares with an ordinary thread.
NICENESS: Final = 5


def lower_priority() -> None:
    """Let other threads have the processor before the calling thread."""
    with suppress(OSError):  # a sandbox may forbid it
        os.nice(NICENESS)  # on Linux, that of the calling thread only
