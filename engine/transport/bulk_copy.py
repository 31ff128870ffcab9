"""Large copies that a thread makes while an event loop goes on.

numpy releases the interpreter's lock while it copies and while the kernel provides
pages. `bytes()` and slices of a memoryview do not. One thread of the process makes all
copies. It copies a block of each in turn, so a large copy does not delay small ones for
long.

A copy may be stopped at any time. After `stop` the thread touches neither side and
holds no reference to them, so the memory may be reused, unmapped or closed.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from engine.tensor import Array, Buffer
from engine.thread_priority import lower_priority

logger = logging.getLogger(__name__)

#: Up to this many bytes of a request or of its results, an event loop copies them
#: itself.
COPIED_AT_ONCE: Final = 4 << 20
#: Bytes that are copied between two checks of whether the copy was stopped.
BLOCK: Final = 1 << 20


def bytes_of(buffer: Buffer) -> Array:
    """Return a view of all bytes of a contiguous buffer."""
    return np.frombuffer(buffer, np.uint8)


class BulkCopy:
    """Pairs of a target and a source of equal size, which `COPIER` copies.

    The copying thread calls `tell` once the copy is over, unless the copy was stopped
    before. `tell` must not block. Any thread may call the methods.
    """

    __slots__ = ("_at", "_lock", "_pairs", "_tell", "failure", "is_over")

    def __init__(
        self, pairs: Sequence[tuple[Array, Array]], tell: Callable[[], None]
    ) -> None:
        self._pairs = [pair for pair in pairs if len(pair[0])]
        self._tell = tell
        self._lock = threading.Lock()
        self._at = 0
        #: Whether the copy is complete, has failed, or was stopped.
        self.is_over = False
        #: The error that ended the copy early.
        self.failure: Exception | None = None

    def stop(self) -> None:
        """Stop copying. Wait for the block that is being copied."""
        with self._lock:
            self.is_over = True
            self._pairs.clear()

    def step(self) -> bool:
        """Copy the next block. Return whether more blocks follow."""
        with self._lock:
            if self.is_over:
                return False
            try:
                self._copy_block()
            except Exception as error:
                self.failure = error
                self._pairs.clear()
            if self._pairs:
                return True
            self.is_over = True
            # Call it under the lock, so that it is never called after `stop`.
            self._tell()
            return False

    def _copy_block(self) -> None:
        """Copy a block of the last pair. On return no local reference to the memory
        remains.
        """
        if not self._pairs:
            return
        target, source = self._pairs[-1]
        start, end = self._at, min(self._at + BLOCK, len(target))
        np.copyto(target[start:end], source[start:end])
        self._at = end
        if end == len(target):
            self._pairs.pop()
            self._at = 0

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"{len(self._pairs)} pairs to go"
        return f"<BulkCopy, {state}>"


class Copier:
    """The thread that copies. The first copy starts it."""

    def __init__(self) -> None:
        self._copies: queue.SimpleQueue[BulkCopy] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, copy: BulkCopy) -> None:
        """Queue a copy and return at once. If no thread can start, copy now."""
        with self._starting:
            # A forked child does not have the parent's thread.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="popgate-copy", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # the system has no more threads
                    while copy.step():
                        pass
                    return
        self._copies.put(copy)

    def _run(self) -> None:
        lower_priority()
        while True:
            copy = self._copies.get()
            try:
                if copy.step():
                    self._copies.put(copy)
            except Exception:
                logger.exception("a copy could not be told to be over")
            del copy  # keep no reference while waiting for the next copy

    def __repr__(self) -> str:
        return f"<Copier {self._copies.qsize()} copies>"


COPIER: Final = Copier()
"""The copier of this process."""
