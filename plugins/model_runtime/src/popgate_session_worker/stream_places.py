"""Places in shared memory for the data of a session's streams, on the device's side.

The device makes the memory of both directions and names places in its messages; the
host maps each segment at its first use. A place is free again

- for an input, when nothing in this process refers to the array in it, which a weak
reference shows: data of a stream stays valid as long as it is used; - for an output,
when the host reports that it has taken the data.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from engine.tensor import Array
from engine.transport.shared_memory import SharedMemory
from popef_io import Anchor, DataType
from popgate_session_messages import DataLocation

#: Places of up to this many bytes share a segment.
_SMALL = 64 * 1024
_MOST_TOGETHER = 8
_ALIGNMENT = 64

#: Makes a segment of so many bytes, known to the host; returns number and memory.
MakeSegment = Callable[[int], tuple[int, SharedMemory]]


class Place:
    """`room` bytes at `offset` of segment `number`."""

    __slots__ = ("_held", "_view", "busy", "number", "offset", "room")

    def __init__(
        self, number: int, memory: SharedMemory, offset: int, room: int
    ) -> None:
        self.number = number
        self.offset = offset
        self.room = room
        #: True while the host has yet to fill the place, or to acknowledge it.
        self.busy = False
        self._view = memory.view[offset : offset + room]
        self._held: weakref.ref[Array] | None = None

    @property
    def is_free(self) -> bool:
        return not self.busy and (self._held is None or self._held() is None)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the bytes as an array. The place is in use while anything refers to
        the array.
        """
        nbytes = dtype.itemsize * prod(shape)
        if not nbytes:
            return np.empty(shape, dtype)
        whole = np.frombuffer(self._view[:nbytes], dtype)
        # A view of it refers to it, and so does every view of that.
        self._held = weakref.ref(whole)
        return whole.reshape(shape)

    def raw(self, nbytes: int) -> memoryview:
        return self._view[:nbytes]

    @property
    def location(self) -> DataLocation:
        return DataLocation(self.number, self.offset, self.room)

    def __repr__(self) -> str:
        state = "free" if self.is_free else "taken"
        return f"<Place {self.number}+{self.offset}, {self.room} bytes, {state}>"


class StreamPlaces:
    """The places of one stream; more are made if none is free."""

    def __init__(self, make: MakeSegment, room: int = 0) -> None:
        self._make = make
        #: Bytes of each new place; grows with the data.
        self.room = _aligned(room)
        self._places: list[Place] = []

    def __len__(self) -> int:
        return len(self._places)

    def find(self, nbytes: int = 0) -> Place | None:
        """Return a free place for `nbytes`, or None."""
        for place in self._places:
            if place.is_free and place.room >= nbytes:
                return place
        return None

    def allocate(self, nbytes: int = 0) -> Place:
        """Return a free place for `nbytes`, new if there is none."""
        place = self.find(nbytes)
        return self._grow(nbytes) if place is None else place

    def allocate_expected(self) -> Place:
        """Return a free place for the expected data."""
        return self.allocate(self.room)

    def expect(self, nbytes: int) -> None:
        """Expect data of so many bytes, and drop smaller places."""
        self.room = max(self.room, _aligned(nbytes))

    def _grow(self, nbytes: int) -> Place:
        if nbytes > self.room:
            self.room = _aligned(max(nbytes, 2 * self.room))
        self._places = [p for p in self._places if not p.is_free or p.room >= self.room]
        room = max(self.room, _ALIGNMENT)
        count = min(max(1, _SMALL // room), _MOST_TOGETHER)
        number, memory = self._make(room * count)
        made = [Place(number, memory, room * i, room) for i in range(count)]
        self._places += made
        return made[0]

    def reclaim(self) -> None:
        """Reclaim all places, which the host does not use any more."""
        for place in self._places:
            place.busy = False

    def at(self, number: int, offset: int) -> Place | None:
        """Return the place that a message of the host names."""
        for place in self._places:
            if place.number == number and place.offset == offset:
                return place
        return None

    def __repr__(self) -> str:
        free = sum(place.is_free for place in self._places)
        return f"<StreamPlaces {len(self)} of {self.room} bytes, {free} free>"


class InputStream:
    """An input that the host may serve."""

    __slots__ = (
        "anchor",
        "arrived",
        "dtype",
        "expected",
        "index",
        "nbytes",
        "places",
        "prefetched",
    )

    def __init__(self, index: int, anchor: Anchor, places: StreamPlaces) -> None:
        self.index = index
        self.anchor = anchor
        self.dtype = anchor.tensor_info.data_type.numpy_dtype
        #: Bytes of one read; -1 if only the host knows.
        self.nbytes = fixed_size(anchor)
        self.places = places
        #: Prefetch requests whose reads are still to be made.
        self.prefetched = 0
        #: Places that the host fills with requested data, the oldest first.
        self.expected: deque[Place] = deque()
        self.arrived: deque[Array] = deque()


class OutputStream:
    """An output that the host may serve."""

    __slots__ = ("anchor", "dtype", "index", "offered", "places", "waiting")

    def __init__(self, index: int, anchor: Anchor, places: StreamPlaces) -> None:
        self.index = index
        self.anchor = anchor
        self.dtype = anchor.tensor_info.data_type.numpy_dtype
        self.places = places
        #: The array that the program writes to, and its place.
        self.offered: tuple[Array, Place] | None = None
        #: Writes that the host has not acknowledged yet.
        self.waiting = 0


def fixed_size(anchor: Anchor) -> int:
    """Return the bytes of one transfer, or -1 if the shape does not determine them."""
    info = anchor.tensor_info
    if not info.is_static or info.data_type is DataType.STRING:
        return -1
    return info.size_in_bytes


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
