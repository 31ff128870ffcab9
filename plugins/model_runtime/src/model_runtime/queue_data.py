# ruff: noqa: N802 - the names are the original's
"""Content of the slots of queues: a user's batch, or memory for a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, SupportsIndex, TypeAlias, TypeVar

import popgate_sessions
from model_runtime.arguments import optional_callback
from model_runtime.memory import buffer_of
from popef.errors import WrongValue
from popef.taking import number

#: Called just before the first byte of the enqueued memory is read.
ReadStartCallback: TypeAlias = Callable[[], None]
#: Called after the last byte of the enqueued memory was read: the memory is free.
ReadCompleteCallback: TypeAlias = Callable[[], None]
#: Called after results were written to the memory that was enqueued for them.
WriteCompleteCallback: TypeAlias = Callable[[], None]

Slot = TypeVar("Slot", popgate_sessions.InputData, popgate_sessions.OutputData)


class _Data(Generic[Slot]):
    """`data_size` bytes of `data`, in a slot of a queue."""

    __slots__ = ("_slot",)

    def __init__(self, slot: Slot) -> None:
        self._slot: Slot = slot

    @property
    def data(self) -> Any:
        """The memory. Bytes beyond `data_size` are not used."""
        return self._slot.data

    @data.setter
    def data(self, data: Any) -> None:
        self._slot.data = bytes_of(data)

    @property
    def data_size(self) -> int:
        """Size of the batch in bytes."""
        return self._slot.data_size

    @data_size.setter
    def data_size(self, size: SupportsIndex) -> None:
        self._slot.data_size = number(size)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.data_size} bytes>"


class InputData(_Data[popgate_sessions.InputData]):
    """A batch of one input: `data_size` bytes of `data`, and its callbacks."""

    __slots__ = ()

    def __init__(self, slot: popgate_sessions.InputData | None = None) -> None:
        super().__init__(popgate_sessions.InputData() if slot is None else slot)

    @property
    def readStartCallback(self) -> ReadStartCallback | None:
        """Called just before the first byte is read."""
        return self._slot.read_start_callback

    @readStartCallback.setter
    def readStartCallback(self, callback: ReadStartCallback | None) -> None:
        name = "readStartCallback"
        self._slot.read_start_callback = optional_callback(name, callback)

    @property
    def readCompleteCallback(self) -> ReadCompleteCallback | None:
        """Called after the last byte was read."""
        return self._slot.read_complete_callback

    @readCompleteCallback.setter
    def readCompleteCallback(self, callback: ReadCompleteCallback | None) -> None:
        name = "readCompleteCallback"
        self._slot.read_complete_callback = optional_callback(name, callback)


class OutputData(_Data[popgate_sessions.OutputData]):
    """Memory for a batch of one output: `data_size` bytes of `data`."""

    __slots__ = ()

    def __init__(self, slot: popgate_sessions.OutputData | None = None) -> None:
        super().__init__(popgate_sessions.OutputData() if slot is None else slot)

    @property
    def writeCompleteCallback(self) -> WriteCompleteCallback | None:
        """Called when the memory is full."""
        return self._slot.write_complete_callback

    @writeCompleteCallback.setter
    def writeCompleteCallback(self, callback: WriteCompleteCallback | None) -> None:
        name = "writeCompleteCallback"
        self._slot.write_complete_callback = optional_callback(name, callback)


def bytes_of(data: Any, size: SupportsIndex | None = None) -> memoryview:
    """Return the first `size` bytes of `data`, in place; without `size`, all of
    them.
    """
    view = buffer_of("data", data)
    if not view.c_contiguous:
        raise WrongValue(
            "the memory is not contiguous in row-major order, as the queue "
            "needs it; pass np.ascontiguousarray(array), which copies it"
        )
    view = view.cast("B") if view.nbytes else memoryview(b"")
    wanted = len(view) if size is None else number(size)
    if not 0 <= wanted <= len(view):
        raise WrongValue(f"data_size is {wanted}, but the memory has {len(view)} bytes")
    return view[:wanted]
