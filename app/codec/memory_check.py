"""Check of the memory that a large document needs, before it is taken.

Work in a thread runs within `reserving`, so that the memory for transfers has what it
is about to take (`app/serving/transfer_memory.py`).

orjson is not made for a process with limited memory (RLIMIT_AS, no overcommit): if
memory is short, it reports a valid document as wrong, or ends the process. So this
module first reserves as much memory without touching it, which takes two system calls.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Iterator

#: Bytes up to which no room is reserved.
_SMALL = 1 << 20
# Without MAP_NORESERVE the kernel compares with the memory of the machine, not with
# what this process may have; Python has no name for it before 3.13.
_local = threading.local()
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


@contextlib.contextmanager
def reserving(take: Callable[[int], None]) -> Iterator[None]:
    """Have `take` told of the bytes that this thread is about to take in the block.

    `take` raises what is to be raised instead.
    """
    _local.take = take
    try:
        yield
    finally:
        del _local.take


def reserve(size: int) -> None:
    """Tell of `size` bytes that this thread is about to take for its present work."""
    take = getattr(_local, "take", None)
    if take is not None:
        take(size)


def ensure_room(size: int) -> None:
    """Raise MemoryError if the process may not have `size` bytes more."""
    if size <= _SMALL:
        return
    try:
        mmap.mmap(-1, size, _FLAGS).close()
    except OSError:
        msg = f"the server lacks {size} bytes of memory for the document"
        raise MemoryError(msg) from None
