"""Check of the memory that a large document needs, before it is taken.

Work in a thread runs within `reserving`, which reports the memory that the work is
about to take to the transfer memory (`app/serving/transfer_memory.py`).

orjson is not made for a process with limited memory (RLIMIT_AS, no overcommit). If
memory is short, it reports a valid document as wrong, or ends the process. So this
module first reserves as much memory without touching it, which takes two system calls.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Iterator

#: Most bytes of shared memory that the event loop copies: less than a millisecond.
SHARED_AT_ONCE = 1 << 20
#: For at most this many bytes no memory is reserved.
_SMALL = 1 << 20
# Without MAP_NORESERVE the kernel compares with the memory of the machine instead of
# this process's limit. Python has no name for the flag before 3.13.
_local = threading.local()
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


@contextlib.contextmanager
def reserving(take: Callable[[int], None]) -> Iterator[None]:
    """Call `take` with the bytes that this thread is about to allocate within the
    block.

    `take` may raise an exception to refuse the allocation.
    """
    before = getattr(_local, "take", None)
    _local.take = take
    try:
        yield
    finally:
        _local.take = before


def reserve(size: int) -> None:
    """Report `size` bytes that this thread is about to allocate for its work."""
    take = getattr(_local, "take", None)
    if take is not None:
        take(size)


class TakesLong(Exception):
    """Work takes too long for the event loop: it has to run in a thread, within
    `reserving`.
    """


def reserve_copy(size: int, total: int) -> None:
    """Report `size` bytes that are about to be copied, `total` with earlier ones.

    Raises `TakesLong` on the event loop, if they are more than `SHARED_AT_ONCE`.
    """
    take = getattr(_local, "take", None)
    if take is not None:
        take(size)
    elif total > SHARED_AT_ONCE:
        raise TakesLong


def ensure_room(size: int) -> None:
    """Raise MemoryError if the process cannot allocate `size` bytes more."""
    if size <= _SMALL:
        return
    try:
        mmap.mmap(-1, size, _FLAGS).close()
    except OSError:
        msg = f"the server lacks {size} bytes of memory for the document"
        raise MemoryError(msg) from None
