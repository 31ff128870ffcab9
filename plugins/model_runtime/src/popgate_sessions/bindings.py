"""Connections of a session's anchors, as the host's end of a run uses them.

A source returns an input's data when the device needs it (`fetch`); some sources can
return it earlier (`try_fetch`). Prefetched data belongs to the program after
`consumed`. Data that the program did not reach is returned again after `rewind`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from engine.errors import InvalidInput
from engine.model.anchors import describe
from engine.tensor import Array, Buffer, DataDesc
from popef_io import Anchor, DataType, Model, TensorType, decode_strings, encode_strings
from popgate_sessions.callbacks import CallbackHandle
from popgate_sessions.queues import Alive, InputQueue, OutputQueue

Shape = tuple[int, ...]
#: Returns memory for so many bytes of an input.
Room = Callable[[int], memoryview]


class InputSource(Protocol):
    """Source of the data of an input."""

    #: False if the source was disconnected and therefore returned zeros.
    is_real: bool
    #: Whether `try_fetch` is of any use.
    can_look_ahead: bool

    def fetch(self, room: Room, alive: Alive) -> Shape:
        """Wait for the next data and put them into `room`; return their shape."""
        ...

    def try_fetch(self, room: Room) -> Shape | None:
        """Fetch without waiting. Return None if no data is ready, or if the source does
        not prefetch.
        """
        ...

    def consumed(self) -> None:
        """Record that the program has read the oldest returned data."""
        ...

    def rewind(self) -> None:
        """Take back data that were returned but not consumed."""
        ...


class OutputSink(Protocol):
    """Target of the data of an output."""

    is_real: bool

    def put(self, data: memoryview, shape: Shape, alive: Alive) -> None:
        """Store data, which are valid only during the call; may wait."""
        ...

    @property
    def has_room(self) -> bool:
        """Return whether `put` would find room without waiting."""
        ...


class CallbackSource:
    """A user's callback, called in the thread that runs the programs.

    Never called to prefetch: it would see reads that may not come.
    """

    is_real = True
    can_look_ahead = False

    def __init__(self, anchor: Anchor, callback: CallbackHandle) -> None:
        self._anchor = anchor
        self._callback = callback

    def fetch(self, room: Room, alive: Alive) -> Shape:
        info = self._anchor.tensor_info
        if not info.is_static or info.data_type is DataType.STRING:
            return self._fetch_returned(room)
        assert info.shape is not None
        memory = _array(room(info.size_in_bytes), info.shape, info.data_type)
        self._callback(memory)
        return info.shape

    def _fetch_returned(self, room: Room) -> Shape:
        info = self._anchor.tensor_info
        dtype = info.data_type.numpy_dtype
        array = self._callback(np.empty(0, dtype))
        if not isinstance(array, np.ndarray) or not _fits(array, self._anchor):
            found = type(array).__name__
            if isinstance(array, np.ndarray):
                found = f"{array.dtype}{list(array.shape)}"
            raise InvalidInput(
                f"the callback of input {self._anchor.name!r} must return an "
                f"array of {info}, got {found}"
            )
        data: Buffer
        if info.data_type is DataType.STRING:
            data = encode_strings(array)
        else:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        room(len(data))[:] = data
        return tuple(array.shape)

    def try_fetch(self, room: Room) -> Shape | None:
        return None

    def consumed(self) -> None:
        """Do nothing: the callback is called only when the program needs the data."""

    def rewind(self) -> None:
        """Do nothing: callbacks are never prefetched."""

    def __repr__(self) -> str:
        return f"<CallbackSource of {self._anchor.name!r}>"


class CallbackSink:
    """A user's callback that receives the data which the device wrote."""

    is_real = True
    has_room = True

    def __init__(self, anchor: Anchor, callback: CallbackHandle) -> None:
        self._anchor = anchor
        self._callback = callback

    def put(self, data: memoryview, shape: Shape, alive: Alive) -> None:
        self._callback(_array(data, shape, self._anchor.tensor_info.data_type))

    def __repr__(self) -> str:
        return f"<CallbackSink of {self._anchor.name!r}>"


class QueueSource:
    """An input queue. A disconnected queue returns zeros, so that the program ends."""

    can_look_ahead = True

    def __init__(self, queue: InputQueue) -> None:
        self.queue = queue
        self.is_real = True

    def fetch(self, room: Room, alive: Alive) -> Shape:
        parts = self.queue.take_batch(alive) if self.queue.is_connected else None
        if parts is None:
            return self._dummy(room)
        return self._copy(parts, room)

    def try_fetch(self, room: Room) -> Shape | None:
        parts = self.queue.try_take_batch() if self.queue.is_connected else None
        return None if parts is None else self._copy(parts, room)

    def consumed(self) -> None:
        self.queue.batch_done()

    def rewind(self) -> None:
        self.queue.put_back()

    def _copy(self, parts: list[memoryview], room: Room) -> Shape:
        nbytes = sum(map(len, parts))
        memory = room(nbytes)
        at = 0
        for part in parts:
            memory[at : at + len(part)] = part
            at += len(part)
        return self._shape(nbytes)

    def _dummy(self, room: Room) -> Shape:
        self.is_real = False
        nbytes = self.queue.batch_bytes or self.queue.sample_bytes
        room(nbytes)[:] = bytes(nbytes)
        return self._shape(nbytes)

    def _shape(self, nbytes: int) -> Shape:
        shape = self.queue.tensor_info.shape or ()
        if not shape:
            return ()
        return (nbytes // self.queue.sample_bytes if nbytes else 0, *shape[1:])

    def __repr__(self) -> str:
        return f"<QueueSource {self.queue!r}>"


class QueueSink:
    """An output queue. A disconnected queue drops data."""

    def __init__(self, queue: OutputQueue) -> None:
        self.queue = queue
        self.is_real = True

    @property
    def has_room(self) -> bool:
        return self.queue.has_room or not self.queue.is_connected

    def put(self, data: memoryview, shape: Shape, alive: Alive) -> None:
        if not self.queue.is_connected or not self.queue.put_batch(data, alive):
            self.is_real = False

    def __repr__(self) -> str:
        return f"<QueueSink {self.queue!r}>"


def descs_of(model: Model, kind: TensorType) -> list[DataDesc]:
    """Return the inputs or the outputs of all phases of a model."""
    return [
        describe(anchor, has_data=anchor.name in model.tensors)
        for anchor in model.metadata.anchors
        if anchor.type is kind
    ]


def _array(data: memoryview, shape: Shape, data_type: DataType) -> Array:
    if data_type is DataType.STRING:
        return decode_strings(data, shape)
    if not len(data):
        return np.empty(shape, data_type.numpy_dtype)
    return np.frombuffer(data, data_type.numpy_dtype).reshape(shape)


def _fits(array: Array, anchor: Anchor) -> bool:
    data_type = anchor.tensor_info.data_type
    if data_type is not DataType.STRING and array.dtype != data_type.numpy_dtype:
        return False
    return describe(anchor).accepts_shape(array.shape)
