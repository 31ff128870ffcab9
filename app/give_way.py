"""Work on something large, in a thread, in blocks: the event loop goes on in between.

Parsers and writers in C, and our own compiled code, keep the interpreter's lock for as
long as a call takes. A thread that gives it up without sleeping has it back before the
event loop has woken up, so it sleeps for a moment.
"""

from __future__ import annotations

import time
from typing import Final

#: Bytes of a body or of an output above which it is worked on in a thread, in blocks.
AT_ONCE: Final = 256 * 1024
#: Elements of a block: a fraction of a millisecond.
BLOCK: Final = 4096
_PAUSE: Final = 50e-6


def give_way() -> None:
    """Let other threads run. Never called by the event loop."""
    time.sleep(_PAUSE)
