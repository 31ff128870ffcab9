"""Anonymous shared memory.

Memory is made with `memfd_create` and passed to the other process as a file descriptor
over a socket. It has no name, so nothing is left in `/dev/shm` if a process is killed,
and Python's resource tracker has no part in it. A segment is sparse. Its size is fixed
when it is made, and a page is allocated when it is first touched. The kernel frees
everything when the last process that maps the segment ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

from popef_io import map_descriptor

PAGE = mmap.PAGESIZE

#: mallopt(3) parameters of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_KEEP_BLOCKS_UP_TO = 64 * 1024 * 1024

#: For madvise(2), which the module `mmap` offers only for its own mappings.
_MADV_REMOVE = 9
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def page_aligned(size: int) -> int:
    """Return `size` rounded up to whole pages, at least one."""
    return max(PAGE, -(-size // PAGE) * PAGE)


class SharedMemory:
    """One anonymous segment, mapped read-write in this process.

    The maker keeps the descriptor (`fd`) until it has been passed on (`detach_fd`), at
    most as long as this object. The mapping lives until `close`, or until the last view
    of it is gone.
    """

    __slots__ = ("fd", "size", "view")

    def __init__(self, fd: int, size: int, *, is_new: bool = False) -> None:
        self.fd = fd  # owned from here on, so closed after any exception
        self.size = size
        if is_new:
            os.ftruncate(fd, size)
        self.view = map_descriptor(fd, size, writable=True)

    def __del__(self) -> None:
        self.detach_fd()

    @classmethod
    def create(cls, name: str, size: int) -> SharedMemory:
        """Return a new segment of `size` bytes (rounded up to pages), all zero."""
        fd = os.memfd_create(f"popgate-{name}"[:200], os.MFD_CLOEXEC)
        return cls(fd, page_aligned(size), is_new=True)

    @classmethod
    def attach(cls, fd: int, expected_size: int) -> SharedMemory:
        """Map a segment from another process. Takes ownership of `fd`."""
        size = os.fstat(fd).st_size
        if size < expected_size:
            os.close(fd)
            raise ValueError(f"segment has {size} bytes, expected {expected_size}")
        return cls(fd, expected_size)

    def give_back(self, start: int, end: int) -> None:
        """Return the pages between two offsets to the system.

        From then on they read as zeros in every process, and are allocated again when
        they are written.
        """
        start, end = page_aligned(start), end // PAGE * PAGE
        if end > start:
            first = ctypes.c_ubyte.from_buffer(self.view, start)
            _madvise(ctypes.addressof(first), end - start, _MADV_REMOVE)

    def detach_fd(self) -> None:
        """Close our descriptor. The mapping stays."""
        fd, self.fd = self.fd, -1  # first, so that an interrupt closes nothing twice
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Unmap the segment. Safe to call twice."""
        self.detach_fd()
        # If a view of the segment still exists, such as a result being read, the
        # mapping ends with that view.
        with contextlib.suppress(BufferError):
            self.view.release()

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SharedMemory {self.size} bytes>"


def keep_large_blocks(*, arenas: int = 0, returns: bool = True) -> bool:
    """Make malloc keep blocks of up to 64 MiB instead of returning them.

    glibc returns every block over 128 KiB to the kernel at once. Each next block then
    costs page faults again. Requests of 600 KB took 1.3 to 1.5 times as long. Returns
    False if the C library has no mallopt (musl).

    Each thread may have its own arena, which keeps the memory that the thread freed and
    that no other thread uses. `arenas` limits the number of arenas (0: no limit). Call
    this before threads are started.

    If not `returns`, only `return_free_memory` returns what is free.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    kept = mallopt(_M_MMAP_THRESHOLD, _KEEP_BLOCKS_UP_TO)
    most = 2 * _KEEP_BLOCKS_UP_TO if returns else (1 << 31) - 1
    trimmed = mallopt(_M_TRIM_THRESHOLD, most)
    if arenas:
        mallopt(_M_ARENA_MAX, arenas)
    return bool(kept and trimmed)


def return_free_memory() -> None:
    """Return the memory that malloc keeps to the system.

    Holds the locks of malloc for 4 to 7 ms for each 100 MB. Does nothing if the C
    library has no malloc_trim (musl).
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
