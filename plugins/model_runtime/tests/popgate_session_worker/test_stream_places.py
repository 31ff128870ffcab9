"""Places for what streams carry: used again when nobody has them any more."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from engine.transport.shared_memory import SharedMemory
from popgate_session_worker.stream_places import StreamPlaces

F32 = np.dtype(np.float32)


@pytest.fixture
def sizes() -> list[int]:
    """Of the segments that were made."""
    return []


@pytest.fixture
def places(sizes: list[int]) -> StreamPlaces:
    def make(size: int) -> tuple[int, SharedMemory]:
        sizes.append(size)
        memory = SharedMemory.create("test", size)
        memory.detach_fd()
        return len(sizes), memory

    return StreamPlaces(make, 100)


def test_a_place_is_taken_while_anything_refers_to_its_array(
    places: StreamPlaces,
) -> None:
    place = places.allocate()
    array = place.array((5, 5), F32)
    array[...] = 7
    row = array[2:3].reshape(-1)[1:]
    del array
    gc.collect()
    assert not place.is_free
    assert (row == 7).all()
    assert places.allocate() is not place
    del row
    assert place.is_free
    assert places.allocate() is place


def test_a_busy_place_is_not_given_out(places: StreamPlaces) -> None:
    first = places.allocate()
    first.busy = True
    second = places.allocate()
    assert second is not first
    assert places.at(first.number, first.offset) is first
    assert places.at(99, 0) is None
    places.reclaim()
    assert places.allocate() is first


def test_small_places_share_a_segment(places: StreamPlaces, sizes: list[int]) -> None:
    taken = []
    for _ in range(9):
        place = places.allocate()
        place.busy = True
        taken.append(place)
    assert sizes == [8 * 128, 8 * 128]
    starts = {(place.number, place.offset) for place in taken}
    assert len(starts) == 9
    for number, place in enumerate(taken):
        place.raw(100)[:] = bytes([number]) * 100
    assert [place.raw(100)[99] for place in taken] == list(range(9))


def test_places_grow_with_what_comes(places: StreamPlaces, sizes: list[int]) -> None:
    places.allocate()
    assert places.allocate(1000).room >= 1000
    assert len(places) == 8  # those that were too small are gone
    places.expect(1 << 20)
    assert places.allocate_expected().room == 1 << 20
    assert places.allocate_expected() is places.allocate_expected()
    assert sizes[-1] == 1 << 20
    assert places.allocate(10).room == 1 << 20


def test_nothing_needs_no_place(places: StreamPlaces) -> None:
    place = places.allocate()
    assert place.array((0, 3), F32).shape == (0, 3)
    assert place.is_free
