"""Threads that give way to others: those that do large work beside small requests."""

from __future__ import annotations

import os
from typing import Final

#: How much such a thread gives way. It has a third of a processor that it shares with
#: another thread.
NICENESS: Final = 5


def lower_priority() -> None:
    """Let other threads have the processor before the calling thread."""
    os.nice(NICENESS)  # on Linux, that of the calling thread only
