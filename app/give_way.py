"""Do large work in a thread, in blocks, so that the event loop runs in between.

Parsers and writers in C, and our own compiled code, keep the interpreter's lock for as
long as a call takes. A thread that releases the lock without sleeping takes it back
before the event loop has woken up. So the thread sleeps for a moment.
"""

from __future__ import annotations

import time
from typing import Any, Final

#: Larger bodies and outputs (bytes) are handled in a thread, in blocks.
AT_ONCE: Final = 256 * 1024
#: Elements of a block. A block takes a fraction of a millisecond.
BLOCK: Final = 4096
_PAUSE: Final = 50e-6


def give_way() -> None:
    """Let other threads run. Never called by the event loop."""
    time.sleep(_PAUSE)


def empty(items: list[Any]) -> None:
    """Empty a long list in blocks. Never called by the event loop.

    Python frees a million strings in one go (20 ms) if their list ends as a whole.
    """
    while len(items) > BLOCK:
        del items[-BLOCK:]
        give_way()
