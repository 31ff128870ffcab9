# ruff: noqa: N802 - the names are the original's
"""Rings and pools of memory (Model Runtime User Guide, memory management)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Self, SupportsIndex, TypeVar

import popgate_sessions
from model_runtime.arguments import checked_callback, named
from model_runtime.durations import Nanoseconds, nanoseconds
from popef.errors import WrongType
from popef.taking import NotPickled, Text, number, text

T = TypeVar("T")


class SpscRingBuffer(NotPickled, Generic[T]):
    """A ring between one writing thread and one reading thread.

    An addition of PopGate: `make` makes the buffers, and writers fill the buffer that
    `writeLock` returns. Without `make`, `write` puts objects other than None into the
    ring.
    """

    #: Called with the ring after a reader has waited for its timeout.
    ReadTimeoutCallback = Callable[["SpscRingBuffer[Any]"], None]

    def __init__(
        self,
        num_buffers: SupportsIndex,
        label: Text = "",
        timeout_cb: Callable[[SpscRingBuffer[T]], None] | None = None,
        timeout_ns: Nanoseconds = 0,
        *,
        make: Callable[[], Any] = object,
    ) -> None:
        timed_out = None
        if timeout_cb is not None:
            callback = checked_callback("timeout_cb", timeout_cb)

            def timed_out(_: popgate_sessions.SpscRingBuffer[Any]) -> None:
                callback(self)

        self._ring = popgate_sessions.SpscRingBuffer(
            number(num_buffers),
            text(label),
            timed_out,
            named("timeout_ns", nanoseconds, timeout_ns),
            make=make,
        )

    @classmethod
    def of(cls, ring: popgate_sessions.SpscRingBuffer[Any]) -> Self:
        """Wrap a ring of the engine."""
        face = cls.__new__(cls)
        face._ring = ring
        return face

    def write(self, obj: T) -> None:
        """Lock a buffer, put `obj` in, and publish it."""
        if obj is None:
            raise WrongType("expected an object, got None")
        self._ring.write(obj)

    def writeLock(self) -> T:
        """Return the buffer to fill. Waits for a free buffer, or until the ring is
        invalid.
        """
        buffer: T = self._ring.write_lock()
        return buffer

    def writeComplete(self) -> None:
        """Publish the buffer that is write-locked."""
        self._ring.write_complete()

    def readLock(self) -> T:
        """Return the next published buffer. Waits for a buffer, or until the ring is
        invalid.
        """
        buffer: T = self._ring.read_lock()
        return buffer

    def readComplete(self) -> None:
        """Release the oldest read-locked buffer."""
        self._ring.read_complete()

    def readReset(self) -> None:
        """Put all read-locked buffers back at the front."""
        self._ring.read_reset()

    def readAvailable(self) -> bool:
        """Return whether `readLock` would return a buffer immediately."""
        return self._ring.read_available()

    def invalidate(self) -> None:
        """Make every call return immediately, with a result that must be ignored."""
        self._ring.invalidate()

    def isValid(self) -> bool:
        """Return False after `invalidate`, until `reset`. Check it after each lock."""
        return self._ring.is_valid()

    def reset(self) -> None:
        """Restore the initial state."""
        self._ring.reset()

    def getState(self, prefix: Text = "") -> str:
        """Return a line for a log, which begins with `prefix`."""
        return self._ring.state(text(prefix))

    def printState(self, prefix: Text = "") -> str:
        """Return `getState`, by its older name."""
        return self.getState(prefix)

    def numBuffers(self) -> int:
        """Return the number of buffers in the ring."""
        return self._ring.num_buffers

    def label(self) -> str:
        """Return the name for logs and errors."""
        return self._ring.label

    def __repr__(self) -> str:
        return repr(self._ring)


class IMemoryPool(ABC):
    """Interface of a memory pool."""

    @abstractmethod
    def blobSize(self) -> int:
        """Bytes of each blob."""

    @abstractmethod
    def getMemoryBlob(self) -> memoryview:
        """Return the next blob."""


class RingMemoryPool(NotPickled, IMemoryPool):
    """A pool of `num_blobs` blobs of `blob_size` bytes, which it returns in turn."""

    def __init__(self, blob_size: SupportsIndex, num_blobs: SupportsIndex) -> None:
        self._pool = popgate_sessions.RingMemoryPool(
            number(blob_size), number(num_blobs)
        )

    @classmethod
    def of(cls, pool: popgate_sessions.RingMemoryPool) -> RingMemoryPool:
        """Wrap a pool of the engine."""
        face = cls.__new__(cls)
        face._pool = pool
        return face

    def blobSize(self) -> int:
        """Bytes of each blob."""
        return self._pool.blob_size

    def numBlobs(self) -> int:
        """Return the number of blobs."""
        return self._pool.num_blobs

    def getMemoryBlob(self) -> memoryview:
        """Return the next blob, and the first blob again after the last."""
        return self._pool.get_memory_blob()

    def __repr__(self) -> str:
        return repr(self._pool)
