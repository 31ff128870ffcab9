"""Memory for large results, which is reused once no reference to it is left.

malloc returns a large block to the system once it is freed. Touching the next block
costs a page fault for every 4 KiB, several times the cost of copying the bytes. So the
pool keeps blocks and reuses them while they are warm.

No call returns a block. A block is free when only the pool refers to it, which its
reference count shows. Everything that can reach the memory refers to it: an array
refers to the block, and views and exported buffers refer to their array. This needs no
finalizer. It works for results that any thread drops, and for results that outlive the
runner.

The pool has a limit (`MOST_BYTES`) and shrinks with its use. Closing a runner empties
it.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from engine.tensor import Array

#: malloc serves results with fewer bytes than this well.
LEAST_BYTES: Final = 32 * 1024
#: The most bytes of all blocks together: eight results of 4 MiB, and the eight results
#: before them that a caller still uses.
MOST_BYTES: Final = 64 << 20
#: The most blocks of about the same size. All of them are searched for a free one.
MOST_ALIKE: Final = 32
#: A block that was not reused for this many results is released.
FORGOTTEN_AFTER: Final = 1024
#: From this size on, requesting pages of 2 MiB pays.
_HUGE: Final = 4 << 20
_FLAGS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class _Block:
    """Anonymous memory of this process alone. A forked child has a copy."""

    __slots__ = ("memory", "used")

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size, flags=_FLAGS)
        if size >= _HUGE:
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        #: The number of the last result that used the block.
        self.used = 0

    def references(self) -> int:
        return sys.getrefcount(self.memory)


#: `references` of a block that is free.
_FREE_REFERENCES: Final = _Block(mmap.PAGESIZE).references()


class ResultMemory:
    """A pool of blocks. All methods may be called from any thread, and do not block.

    The pool keeps at most `most` bytes, used and free blocks together.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._blocks: dict[int, list[_Block]] = {}
        self._count = 0

    @property
    def nbytes(self) -> int:
        """Return the bytes of all blocks, used or free."""
        return sum(size * len(blocks) for size, blocks in self._blocks.items())

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
        """Return a new array of `nbytes` bytes. Its values are not initialized.

        If the pool has no free block, the memory comes from numpy.
        """
        # Never wait for the lock, because a garbage collection in here may run code
        # that calls this again.
        if nbytes < LEAST_BYTES or not self._lock.acquire(blocking=False):
            return np.empty(shape, dtype)
        try:
            block = self._take(_size_of(nbytes))
            if block is None:
                return np.empty(shape, dtype)
            return np.ndarray(shape, dtype, block.memory)
        finally:
            self._lock.release()

    def give_back(self) -> None:
        """Return the free blocks to the system, and forget the used ones."""
        self._blocks = {}  # without the lock: see `array`

    def _take(self, size: int) -> _Block | None:
        self._count += 1
        if self._count % FORGOTTEN_AFTER == 0:
            self._keep(self._count - FORGOTTEN_AFTER)
        alike = self._blocks.get(size)
        if alike is not None:
            # Take the first free block, so that few blocks are used and they stay warm.
            for block in alike:
                if block.references() == _FREE_REFERENCES:
                    block.used = self._count
                    return block
            if len(alike) >= MOST_ALIKE:
                return None
        if self.nbytes + size > self._most:
            self._keep_held()
            if self.nbytes + size > self._most:
                return None
        try:
            block = _Block(size)
        except OSError:  # no more mappings or memory: numpy raises the error
            return None
        block.used = self._count
        self._blocks.setdefault(size, []).append(block)
        return block

    def _keep(self, since: int) -> None:
        """Release the blocks that were last handed out before result `since`."""
        self._choose(lambda block: block.used >= since)

    def _keep_held(self) -> None:
        """Return the free blocks to the system."""
        self._choose(lambda block: block.references() != _FREE_REFERENCES)

    def _choose(self, kept: Callable[[_Block], bool]) -> None:
        chosen = {
            size: [block for block in blocks if kept(block)]
            for size, blocks in self._blocks.items()
        }
        self._blocks = {size: blocks for size, blocks in chosen.items() if blocks}

    def __repr__(self) -> str:
        return f"<ResultMemory {self.nbytes} of {self._most} bytes>"


def _size_of(nbytes: int) -> int:
    """Return the size of a block for this many bytes. There are four sizes for each
    power of two, so requests with slightly different sizes use the same blocks.
    """
    step = max(mmap.PAGESIZE, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return -(-nbytes // step) * step


RESULT_MEMORY: Final = ResultMemory()
"""The pool of this process."""
