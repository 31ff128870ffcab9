"""Threads that give way to others: those that do large work beside small requests."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final

#: A thread of it has a quarter of a processor that it shares with an ordinary thread.
NICENESS: Final = 5
_PAUSE: Final = 50e-6


def lower_priority() -> None:
    """Let other threads have the processor before the calling thread."""
    with suppress(OSError):  # a sandbox may forbid it
        os.nice(NICENESS)  # on Linux, that of the calling thread only


def give_way() -> None:
    """Let other threads run. Never called by an event loop.

    A thread that releases the interpreter's lock without sleeping takes it back before
    another one has woken up. If it does so every few microseconds, as some calls in C
    do, the others never wait for long enough to ask for the lock.
    """
    time.sleep(_PAUSE)
