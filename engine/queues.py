"""Input and output queues: user batches of any size, compiled batches on the device.

A queue belongs to one anchor. Whoever enqueues hands over memory, which is not copied
and must stay as it is until its callback is called. The side that runs the program
takes whole compiled batches off the input queues, cut from and joined over what was
enqueued, and hands results to the output queues, which fill the enqueued buffers one
after the other (Model Runtime User Guide 5, "Queues"). The enqueue side is for one
thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine.errors import InvalidInput, QueueClosed
from engine.ring_buffer import SpscRingBuffer
from engine.tensor import Buffer
from popef_io import Anchor, TensorInfo

Callback = Callable[[], None]


@dataclass(slots=True)
class InputData:
    """A user's batch of one input (Model Runtime: `InputData`).

    `read_start_callback` is called just before the first byte is taken,
    `read_complete_callback` when the last one was.
    """

    data: Buffer = b""
    data_size: int = 0
    read_start_callback: Callback | None = None
    read_complete_callback: Callback | None = None


@dataclass(slots=True)
class OutputData:
    """A user's buffer for one output; the callback is called when it is full."""

    data: Buffer = b""
    data_size: int = 0
    write_complete_callback: Callback | None = None


Slot = TypeVar("Slot", InputData, OutputData)

InputRingBuffer = SpscRingBuffer[InputData]
OutputRingBuffer = SpscRingBuffer[OutputData]
TimeoutCallback = Callable[[InputRingBuffer], None]


def bytes_per_sample(info: TensorInfo) -> int:
    """Bytes of one row; of the whole tensor where it has no dimensions."""
    if info.shape is None or any(dim < 0 for dim in info.shape[1:]):
        raise InvalidInput(f"queues need a fixed shape after the batch, got {info}")
    nbytes = info.data_type.item_size
    if not nbytes:
        raise InvalidInput(f"queues carry no {info.data_type.name}")
    for dim in info.shape[1:]:
        nbytes *= dim
    return nbytes


def batch_rows(info: TensorInfo) -> int:
    """Rows of the compiled batch; 1 where it is free or there are no dimensions."""
    return max(1, info.shape[0]) if info.shape else 1


class AnchorQueue(Generic[Slot]):
    """What input and output queues share: slots that a user fills and publishes."""

    _direction = ""

    def __init__(self, anchor: Anchor, ring: SpscRingBuffer[Slot]) -> None:
        self.anchor = anchor
        self.sample_bytes = bytes_per_sample(anchor.tensor_info)
        self.batch_bytes = self.sample_bytes * batch_rows(anchor.tensor_info)
        self._ring: SpscRingBuffer[Slot] = ring
        self._current: Slot | None = None
        self._done = 0  # bytes of the current slot that are taken, or filled
        self._enqueued = 0

    @property
    def tensor_info(self) -> TensorInfo:
        """Of one compiled batch."""
        return self.anchor.tensor_info

    @property
    def num_buffers(self) -> int:
        return self._ring.num_buffers

    def enqueue_lock(self) -> Slot:
        """A slot to fill; waits for a free one. Then `enqueue_complete`."""
        slot = self._ring.write_lock()
        if not self._ring.is_valid():
            raise QueueClosed(
                f"{self._direction} queue {self.anchor.name!r} is disconnected"
            )
        return slot

    def enqueue_complete(self) -> None:
        """Publish the slot that was locked."""
        slot = self._ring.write_lock()
        if not 0 < slot.data_size <= len(slot.data) or (
            slot.data_size % self.sample_bytes
        ):
            raise InvalidInput(
                f"{self._direction} {self.anchor.name!r} takes a multiple of "
                f"{self.sample_bytes} bytes, got {slot.data_size} of a buffer of "
                f"{len(slot.data)}"
            )
        self._enqueued += slot.data_size
        self._ring.write_complete()

    def disconnect(self) -> None:
        """Make all waits return; what they return is to be ignored."""
        self._ring.invalidate()

    def reset(self) -> None:
        """Empty again, after the session was stopped."""
        self._ring.reset()
        self._current, self._done, self._enqueued = None, 0, 0

    def _missing(self) -> int:
        """Bytes that complete a partial batch; a whole batch where there is none."""
        return -self._enqueued % self.batch_bytes or self.batch_bytes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._ring.state()}>"


class InputQueue(AnchorQueue[InputData]):
    """The queue of one input; made by `QueueManager`."""

    _direction = "input"

    def __init__(
        self,
        anchor: Anchor,
        num_buffers: int,
        timeout_cb: TimeoutCallback | None = None,
        timeout_ns: int = 0,
    ) -> None:
        super().__init__(
            anchor,
            SpscRingBuffer(
                num_buffers, anchor.name, timeout_cb, timeout_ns, make=InputData
            ),
        )

    def enqueue(
        self,
        data: Buffer,
        read_start_callback: Callback | None = None,
        read_complete_callback: Callback | None = None,
    ) -> None:
        """Queue a user batch of any number of samples; waits for a free slot."""
        slot = self.enqueue_lock()
        view = memoryview(data).cast("B")
        slot.data, slot.data_size = view, len(view)
        slot.read_start_callback = read_start_callback
        slot.read_complete_callback = read_complete_callback
        self.enqueue_complete()

    def flush(self) -> None:
        """Complete a partial batch with zeros; a whole one where there is none."""
        self.enqueue(bytes(self._missing()))

    def take_batch(self) -> list[Buffer] | None:
        """The parts of the next compiled batch, waiting for them; None: disconnected.

        For the side that runs the program. The parts are views of users' memory.
        """
        parts: list[Buffer] = []
        missing = self.batch_bytes
        while missing:
            if self._current is None and not self._next():
                return None
            current = self._current
            assert current is not None
            part = memoryview(current.data)[self._done : current.data_size][:missing]
            parts.append(part)
            missing -= len(part)
            self._done += len(part)
            if self._done == current.data_size and missing:
                self._finish()
        return parts

    def batch_consumed(self) -> None:
        """The parts of the last batch are not needed any more."""
        if self._current is not None and self._done == self._current.data_size:
            self._finish()

    def _next(self) -> bool:
        current = self._ring.read_lock()
        if not self._ring.is_valid():
            return False
        self._current, self._done = current, 0
        if current.read_start_callback is not None:
            current.read_start_callback()
        return True

    def _finish(self) -> None:
        current, self._current = self._current, None
        if current is not None and current.read_complete_callback is not None:
            current.read_complete_callback()
        self._ring.read_complete()


class OutputQueue(AnchorQueue[OutputData]):
    """The queue of one output; made by `QueueManager`."""

    _direction = "output"

    def __init__(self, anchor: Anchor, num_buffers: int) -> None:
        super().__init__(
            anchor, SpscRingBuffer(num_buffers, anchor.name, make=OutputData)
        )

    def enqueue(
        self, output: Buffer, write_complete_callback: Callback | None = None
    ) -> None:
        """Queue a buffer for any number of samples; waits for a free slot."""
        view = memoryview(output).cast("B")
        if view.readonly:
            raise InvalidInput(f"output {self.anchor.name!r} needs writable memory")
        slot = self.enqueue_lock()
        slot.data, slot.data_size = view, len(view)
        slot.write_complete_callback = write_complete_callback
        self.enqueue_complete()

    def flush(self) -> None:
        """A place for the rows that `InputQueue.flush` added, which nobody wants."""
        self.enqueue(bytearray(self._missing()))

    def put_batch(self, data: Buffer) -> bool:
        """Hand the bytes of a compiled batch to the waiting buffers, waiting for
        them where there are none; False: disconnected."""
        view = memoryview(data)
        while view:
            if self._current is None:
                current = self._ring.read_lock()
                if not self._ring.is_valid():
                    return False
                self._current, self._done = current, 0
            current = self._current
            room = current.data_size - self._done
            part = view[:room]
            target = memoryview(current.data)
            target[self._done : self._done + len(part)] = part
            self._done += len(part)
            view = view[len(part) :]
            if self._done == current.data_size:
                self._current = None
                self._ring.read_complete()
                if current.write_complete_callback is not None:
                    current.write_complete_callback()
        return True
