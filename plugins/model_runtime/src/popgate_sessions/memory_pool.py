"""Memory that users put behind a ring: blobs of one size, used in turn.

The blob of a slot is free again when the slot is released, in the same order (Model
Runtime: `RingMemoryPool`).
"""

from __future__ import annotations

from typing import Any

from engine.errors import InvalidConfig
from popgate_sessions.queues import AnchorQueue

#: Most bytes of a pool: no address space has more.
MOST_BYTES = 1 << 46


class RingMemoryPool:
    """`num_blobs` blobs of `blob_size` bytes, handed out round and round."""

    def __init__(self, blob_size: int, num_blobs: int) -> None:
        if blob_size < 1 or num_blobs < 1:
            msg = (
                f"RingMemoryPool needs sizes of at least 1, got {blob_size} x "
                f"{num_blobs}"
            )
            raise InvalidConfig(msg)
        if blob_size * num_blobs > MOST_BYTES:
            msg = f"RingMemoryPool of {blob_size} x {num_blobs} bytes is too large"
            raise InvalidConfig(msg)
        self._memory = memoryview(bytearray(blob_size * num_blobs))
        self._blob_size = blob_size
        self._num_blobs = num_blobs
        self._next = 0

    @property
    def blob_size(self) -> int:
        return self._blob_size

    @property
    def num_blobs(self) -> int:
        return self._num_blobs

    def get_memory_blob(self) -> memoryview:
        """Return the next blob; after the last comes the first again."""
        start = self._next * self._blob_size
        self._next = (self._next + 1) % self._num_blobs
        return self._memory[start : start + self._blob_size]

    def __repr__(self) -> str:
        return f"<RingMemoryPool {self._num_blobs} x {self._blob_size} bytes>"


def allocate_queue_storage(
    queue: AnchorQueue[Any], extra_buffers: int = 0
) -> RingMemoryPool:
    """Allocate memory for as many compiled batches as `queue` has buffers, and
    `extra_buffers` more (Model Runtime: `allocateQueueStorage`). A free batch counts as
    one row.
    """
    return RingMemoryPool(
        queue.batch_bytes or queue.sample_bytes, queue.num_buffers + extra_buffers
    )
