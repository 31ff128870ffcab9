"""Memory for large results, used again once no reference to it is left.

malloc returns a large block to the system once it is freed, and touching the next one
costs a page fault for every 4 KiB, several times the cost of copying the bytes into it.
So the pool keeps blocks and reuses them while they are warm.

No call returns a block. A block is free when only the pool refers to it, which its
reference count shows. Everything that can reach the memory refers to it: an array does,
a view refers to its array, and so does an exported buffer. That needs no finalizer,
works for results dropped in any thread, and for results that outlive the runner.

The pool has a limit (`MOST_BYTES`), follows the use, and is emptied when a runner is
closed.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from engine.tensor import Array

#: Results of fewer bytes are what malloc is good at.
LEAST_BYTES: Final = 32 * 1024
#: What all blocks together take at most: eight results of 4 MiB, and the eight before
#: them that a caller still looks at.
MOST_BYTES: Final = 64 << 20
#: Of about one size: so many are looked through for a free one.
MOST_ALIKE: Final = 32
#: A block that was not handed out again for so many results is let go of.
FORGOTTEN_AFTER: Final = 1024
#: From here on it pays to ask for pages of 2 MiB.
_HUGE: Final = 4 << 20
_FLAGS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class _Block:
    """Anonymous memory, of this process alone; a forked child has a copy."""

    __slots__ = ("memory", "used")

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size, flags=_FLAGS)
        if size >= _HUGE:
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        #: The number of the result that it was handed out for last.
        self.used = 0

    def references(self) -> int:
        return sys.getrefcount(self.memory)


#: `references` of a block that is free.
_FREE_REFERENCES: Final = _Block(mmap.PAGESIZE).references()


class ResultMemory:
    """A pool of blocks. All methods may be called from any thread, and do not block.

    `most` bytes are kept at most, whether results are in them or not.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._blocks: dict[int, list[_Block]] = {}
        self._count = 0

    @property
    def nbytes(self) -> int:
        """Return bytes of the blocks that are kept, free or not."""
        return sum(size * len(blocks) for size, blocks in self._blocks.items())

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
        """Return a new array of `nbytes` bytes; its values are not set.

        If the pool has none, the memory comes from numpy.
        """
        # Never waits: a garbage collection in here may run what ends up in here again.
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
        """Return the free blocks to the system, and forget the others."""
        self._blocks = {}  # without the lock: see `array`

    def _take(self, size: int) -> _Block | None:
        self._count += 1
        if self._count % FORGOTTEN_AFTER == 0:
            self._keep(self._count - FORGOTTEN_AFTER)
        alike = self._blocks.get(size)
        if alike is not None:
            # The first that is free: what is used is as little as does, and warm.
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
        except OSError:  # no more mappings, or no more memory: numpy says so
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
    """Return the size of a block for this many bytes: one of four sizes for each power
    of two, so requests with slightly different sizes use the same blocks.
    """
    step = max(mmap.PAGESIZE, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return -(-nbytes // step) * step


RESULT_MEMORY: Final = ResultMemory()
"""That of this process."""
