# ruff: noqa: N802 - the names are the original's
"""The rings of queues, whose buffers are `InputData` and `OutputData`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar, SupportsIndex, TypeAlias, TypeVar

import popgate_sessions
from model_runtime.durations import Nanoseconds
from model_runtime.queue_data import InputData, OutputData
from model_runtime.ring import SpscRingBuffer
from popef.taking import Text, expected

Data = TypeVar("Data", InputData, OutputData)


class _DataRing(SpscRingBuffer[Data]):
    """A ring whose buffers exist from the beginning; writers fill them.

    `write` copies the members of `obj`, but not the memory to which `obj` refers.
    """

    _buffer: ClassVar[type[Any]]
    _face: ClassVar[type[Any]]

    def __init__(
        self,
        num_buffers: SupportsIndex,
        label: Text = "",
        timeout_cb: Callable[[Any], None] | None = None,
        timeout_ns: Nanoseconds = 0,
    ) -> None:
        make = self._buffer
        super().__init__(num_buffers, label, timeout_cb, timeout_ns, make=make)

    def write(self, obj: Data) -> None:
        """Lock a buffer, copy the members of `obj` into it, and publish it."""
        self._ring.write(copy.copy(expected(obj, self._face)._slot))

    def writeLock(self) -> Data:
        """Return the buffer to fill. Waits for a free buffer, or until the ring is
        invalid.
        """
        data: Data = self._face(self._ring.write_lock())
        return data

    def readLock(self) -> Data:
        """Return the next published buffer. Waits for a buffer, or until the ring is
        invalid.
        """
        data: Data = self._face(self._ring.read_lock())
        return data


class InputRingBuffer(_DataRing[InputData]):
    """Ring of batches of an input, with one writing and one reading thread."""

    _buffer, _face = popgate_sessions.InputData, InputData


class OutputRingBuffer(_DataRing[OutputData]):
    """Ring of memory for batches of an output."""

    _buffer, _face = popgate_sessions.OutputData, OutputData


#: Called with the ring of an input that lacks rows when its timeout has passed.
TimeoutCallback: TypeAlias = Callable[[InputRingBuffer], None]
