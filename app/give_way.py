"""Do large work in a thread, in blocks, so that the event loop runs in between.

Parsers and writers in C, and our own compiled code, keep the interpreter's lock for as
long as a call takes. So the thread calls `give_way` after each block.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final

from engine import give_way as let_others_run

#: Larger bodies and outputs (bytes) are handled in a thread, in blocks.
AT_ONCE: Final = 256 * 1024
#: Elements of a block. A block takes a fraction of a millisecond.
BLOCK: Final = 4096
#: A body with more values than this is always handled in a thread.
MANY: Final = 1 << 18

#: `do_first` is called by `give_way` in a thread that has set it (`DaemonPool`).
local = threading.local()


def give_way() -> None:
    """Let other threads run, and then much smaller work of this thread."""
    let_others_run()
    do_first = getattr(local, "do_first", None)
    if do_first is not None:
        do_first()


def in_blocks(values: list[Any]) -> Iterable[list[Any]]:
    """Return a list in blocks if it has more than `MANY` values, else as a whole.

    Give way after each block.
    """
    return _blocks(values) if len(values) > MANY else (values,)


def _blocks(values: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(values), BLOCK):
        yield values[start : start + BLOCK]
        give_way()


def empty(items: list[Any]) -> None:
    """Empty a long list in blocks. Never called by the event loop.

    Python frees a million strings in one go (20 ms) if their list ends as a whole.
    """
    while len(items) > BLOCK:
        del items[-BLOCK:]
        give_way()
