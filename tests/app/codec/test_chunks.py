"""Bytes taken from bodies in one chunk and in several."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from app.codec.chunks import Chunks, beginning
from engine import Buffer

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


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("size", [0, 1, 5, 6, 7, 30, 99, 100, 200])
def test_the_beginning_of_a_body(kind: Callable[[bytes], Buffer], size: int) -> None:
    body = [kind(DATA[:1]), kind(DATA[1:6]), kind(DATA[6:])]
    assert beginning(body, size)[:size] == DATA[:size]
    assert beginning([kind(DATA)], size)[:size] == DATA[:size]
    assert beginning([], size) == b""


def test_the_beginning_of_a_body_does_not_take_the_memory_of_the_rest() -> None:
    body: list[Buffer] = [b"{", *[bytes(1 << 20)] * 64]
    tracemalloc.start()
    try:
        assert beginning(body, 4096) == b"{" + bytes(4095)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
    assert beginning([DATA], 5) is DATA


def test_bytes_of_one_chunk_are_not_copied() -> None:
    chunks = Chunks([DATA], 100)
    chunks.read(5)
    array = chunks.read_array(90)
    assert array.tobytes() == DATA[5:95]
    assert np.shares_memory(array, np.frombuffer(DATA, np.uint8))
    assert chunks.left == 5
