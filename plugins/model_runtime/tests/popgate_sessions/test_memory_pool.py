"""Blobs of one size come round and round."""

from __future__ import annotations

import pytest

from engine.errors import InvalidConfig
from popgate_sessions.memory_pool import RingMemoryPool


def test_blobs_come_round_and_round() -> None:
    pool = RingMemoryPool(4, 3)
    blobs = [pool.get_memory_blob() for _ in range(4)]
    blobs[0][:] = b"abcd"
    assert bytes(blobs[3]) == b"abcd"
    assert bytes(blobs[1]) == bytes(4)
    assert (pool.blob_size, pool.num_blobs) == (4, 3)
    with pytest.raises(InvalidConfig):
        RingMemoryPool(0, 1)
