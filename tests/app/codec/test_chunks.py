"""Bytes taken from bodies in one chunk and in several."""

from __future__ import annotations

import numpy as np
import pytest

from app.codec.chunks import Chunks

DATA = bytes(range(100))


@pytest.mark.parametrize("step", [1, 7, 33, 99])
def test_bytes_of_several_chunks_are_copied_by_numpy(step: int) -> None:
    chunks = Chunks([DATA[i : i + step] for i in range(0, 100, step)], 100)
    assert chunks.read_bytes(5) == DATA[:5]
    array = chunks.read_array(95)
    assert array.tobytes() == DATA[5:]
    assert array.flags.owndata
    assert chunks.left == 0
    assert chunks.read_array(0).tobytes() == b""


def test_bytes_of_one_chunk_are_not_copied() -> None:
    chunks = Chunks([DATA], 100)
    chunks.read(5)
    array = chunks.read_array(90)
    assert array.tobytes() == DATA[5:95]
    assert np.shares_memory(array, np.frombuffer(DATA, np.uint8))
    assert chunks.left == 5
