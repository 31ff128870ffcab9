"""Input and output queues: user batches of any size, compiled batches on the device.

A queue belongs to one anchor. Enqueueing passes memory, which is not copied and must
stay unchanged until its callback is called. The side that runs the program takes whole
compiled batches off the input queues, cut and joined from the enqueued data. It passes
results to the output queues, which fill the enqueued buffers one after the other (Model
Runtime User Guide 5, "Queues"). If the model leaves the first dimension free there is
no compiled batch: each read takes one user batch unchanged.

Batches may be prefetched: a taken batch stays in the queue until `batch_done`, and
`put_back` makes all of them available again.

The enqueue side is for one thread, and so is the side that runs the program; the
callbacks are called in the latter.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from engine.errors import InvalidInput, QueueClosed, QueueFull
from engine.fork_guard import fork_guard
from engine.tensor import Array, Buffer
from popef_io import Anchor, TensorInfo
from popgate_sessions.ring_buffer import SpscRingBuffer

logger = logging.getLogger("engine.session.queues")

Callback = Callable[[], None]
#: Called regularly while the side that runs the program waits. It raises an error to
#: end the wait.
Alive = Callable[[], None]


@dataclass(slots=True)
class InputData:
    """A user's batch of one input (Model Runtime: `InputData`).

    `read_start_callback` is called just before the first byte is taken (and again after
    a prefetched batch was put back), `read_complete_callback` when the program has
    taken the last one.
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
    """Return the bytes of one row; of the whole tensor if it has no dimensions."""
    if info.shape is None or any(dim < 0 for dim in info.shape[1:]):
        raise InvalidInput(
            f"queues need a fixed shape after the batch dimension, got {info}"
        )
    nbytes = info.data_type.item_size
    if not nbytes:
        raise InvalidInput(
            f"queues do not support {info.data_type.name}; connect a callback instead"
        )
    for dim in info.shape[1:]:
        nbytes *= dim
    return nbytes


def batch_rows(info: TensorInfo) -> int:
    """Return the rows of the compiled batch: 1 without dimensions, 0 if it is free."""
    return max(0, info.shape[0]) if info.shape else 1


class RunningThread:
    """The thread that runs programs at the moment, for the queues it serves."""

    __slots__ = ("ident",)

    def __init__(self) -> None:
        self.ident: int | None = None

    @property
    def is_me(self) -> bool:
        return self.ident == threading.get_ident()

    def mark(self) -> None:
        """Mark the calling thread."""
        self.ident = threading.get_ident()

    def clear(self) -> None:
        """Record that no thread runs programs."""
        self.ident = None

    def __repr__(self) -> str:
        return f"<RunningThread {self.ident}>"


class AnchorQueue(Generic[Slot]):
    """Common part of input and output queues: slots that a user fills and publishes."""

    _direction = ""

    def __init__(
        self, anchor: Anchor, ring: SpscRingBuffer[Slot], running: RunningThread | None
    ) -> None:
        self.anchor = anchor
        self._fork_guard = fork_guard()
        self.sample_bytes = bytes_per_sample(anchor.tensor_info)
        #: 0 if the first dimension is free.
        self.batch_bytes = self.sample_bytes * batch_rows(anchor.tensor_info)
        self._ring: SpscRingBuffer[Slot] = ring
        self._running = running or RunningThread()
        self._enqueued = 0

    @property
    def tensor_info(self) -> TensorInfo:
        """Return the shape and type of one compiled batch."""
        return self.anchor.tensor_info

    @property
    def num_buffers(self) -> int:
        return self._ring.num_buffers

    @property
    def is_connected(self) -> bool:
        """Return whether it is connected: False after `disconnect`, until `reset`."""
        return self._ring.is_valid()

    def enqueue_lock(self) -> Slot:
        """Wait for a free slot and return it, to be filled.

        Then call `enqueue_complete`.

        Raises QueueClosed if the queue is disconnected, and QueueFull if the wait would
        never end: in a callback, no other thread makes room. Raises WrongProcess in a
        forked child.
        """
        if self._fork_guard.left:
            what = f"{self._direction} queue {self.anchor.name!r}"
            raise self._fork_guard.error(what)
        if self._running.is_me and not self._ring.write_available():
            raise QueueFull(
                f"{self._direction} queue {self.anchor.name!r} is full, and "
                "only this thread, which runs the programs, could empty it; "
                "enqueue from another thread"
            )
        return self._locked()

    def _locked(self) -> Slot:
        slot = self._ring.write_lock()
        if not self._ring.is_valid():
            raise QueueClosed(
                f"{self._direction} queue {self.anchor.name!r} is disconnected"
            )
        return slot

    def enqueue_complete(self) -> None:
        """Publish the locked slot. Raises InvalidInput if no slot is locked, or if it
        does not hold a whole number of samples.
        """
        if not self._ring.write_locked and self._ring.is_valid():
            raise InvalidInput(
                f"no slot of {self._direction} queue {self.anchor.name!r} is "
                "locked; lock and fill one first"
            )
        if not self.sample_bytes:
            raise InvalidInput(
                f"{self._direction} {self.anchor.name!r} has rows without elements, "
                "which queues do not support; connect a callback instead"
            )
        slot = self._locked()
        if not 0 < slot.data_size <= len(slot.data) or (
            slot.data_size % self.sample_bytes
        ):
            raise InvalidInput(
                f"{self._direction} {self.anchor.name!r} takes a multiple of "
                f"{self.sample_bytes} bytes, got {slot.data_size} in a buffer "
                f"of {len(slot.data)}"
            )
        self._enqueued += slot.data_size
        self._ring.write_complete()

    def disconnect(self) -> None:
        """Make all waits return, with results that must be ignored."""
        self._ring.invalidate()

    def reset(self) -> None:
        """Empty and reconnect the queue, after the session was stopped."""
        self._ring.reset()
        self._enqueued = 0

    def _missing(self) -> int:
        """Return the number of bytes that complete a partial batch, or those of a whole
        batch if there is none.
        """
        if not self.batch_bytes:
            return self.sample_bytes
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
        running: RunningThread | None = None,
    ) -> None:
        ring = SpscRingBuffer(
            num_buffers, anchor.name, timeout_cb, timeout_ns, make=InputData
        )
        super().__init__(anchor, ring, running)
        self._held: deque[InputData] = deque()  # read-locked slots, the oldest first
        self._cursor = 0  # index of the slot that is being taken
        self._at = 0  # taken bytes of that slot
        self._done = 0  # finished bytes of the oldest slot
        self._taken: deque[int] = deque()  # bytes of each batch that is not done

    def enqueue(
        self,
        data: Buffer | Array,
        read_start_callback: Callback | None = None,
        read_complete_callback: Callback | None = None,
    ) -> None:
        """Queue a user batch of any number of samples; waits for a free slot."""
        slot = self.enqueue_lock()
        view = memoryview(cast(Buffer, data)).cast("B")
        slot.data, slot.data_size = view, len(view)
        slot.read_start_callback = read_start_callback
        slot.read_complete_callback = read_complete_callback
        self.enqueue_complete()

    def flush(self) -> None:
        """Complete a partial batch with zeros, or add a batch of zeros if there is
        none. Does nothing for a disconnected queue, for which no run waits.
        """
        missing = self._missing()
        logger.debug("input queue %r is flushed: %d bytes", self.anchor.name, missing)
        with contextlib.suppress(QueueClosed):
            self.enqueue(bytes(missing))

    def reset(self) -> None:
        super().reset()
        self._held.clear()
        self._taken.clear()
        self._cursor = self._at = self._done = 0

    def take_batch(self, alive: Alive) -> list[memoryview] | None:
        """Wait for the parts of the next compiled batch, and return them; None if the
        queue is disconnected.

        For the side that runs the program. The parts are views of users' memory, which
        stays theirs until `batch_done`.
        """
        return self._take(lambda: self._wait_for_slot(alive), at_once=True)

    def try_take_batch(self) -> list[memoryview] | None:
        """Take a batch without waiting. Return None if the batch is not complete."""
        return self._take(self._ring.try_read_lock, at_once=False)

    def batch_done(self) -> None:
        """Record that the program has the oldest batch that was taken."""
        if not self._taken:  # zeros of a queue that was disconnected
            return
        self._done += self._taken.popleft()
        while self._held and self._done >= self._held[0].data_size:
            slot = self._held.popleft()
            self._done -= slot.data_size
            self._cursor -= 1
            callback = slot.read_complete_callback
            slot.data = b""
            self._ring.read_complete()
            if callback is not None:
                callback()

    def put_back(self) -> None:
        """Put back the batches that were taken and not finished."""
        self._taken.clear()
        self._cursor, self._at = 0, self._done

    def _take(
        self, lock: Callable[[], InputData | None], at_once: bool
    ) -> list[memoryview] | None:
        """Take slots of a batch.

        `at_once` is called at its start, before the rest has come.
        """
        parts: list[memoryview] = []
        starting: list[Callback] = []
        cursor, at, missing = self._cursor, self._at, self.batch_bytes
        while missing or not parts:
            if cursor == len(self._held):
                slot = lock()
                if slot is None:
                    return None
                self._held.append(slot)
            slot = self._held[cursor]
            if at == 0 and slot.read_start_callback is not None:
                starting.append(slot.read_start_callback)
            if at_once:
                _call_all(starting)
            end = slot.data_size
            if missing:
                end = min(end, at + missing)
                missing -= end - at
            parts.append(memoryview(slot.data)[at:end])
            at = end
            if at == slot.data_size:
                cursor, at = cursor + 1, 0
        _call_all(starting)  # first: a failed callback is called again
        self._cursor, self._at = cursor, at
        self._taken.append(sum(map(len, parts)))
        return parts

    def _wait_for_slot(self, alive: Alive) -> InputData | None:
        slot = self._ring.read_lock(alive)
        return slot if self._ring.is_valid() else None


def _call_all(callbacks: list[Callback]) -> None:
    while callbacks:
        callbacks.pop(0)()


class OutputQueue(AnchorQueue[OutputData]):
    """The queue of one output; made by `QueueManager`."""

    _direction = "output"

    def __init__(
        self, anchor: Anchor, num_buffers: int, running: RunningThread | None = None
    ) -> None:
        ring = SpscRingBuffer(num_buffers, anchor.name, make=OutputData)
        super().__init__(anchor, ring, running)
        self._current: OutputData | None = None
        self._filled = 0  # bytes of the current slot

    def enqueue(
        self, output: Buffer | Array, write_complete_callback: Callback | None = None
    ) -> None:
        """Queue a buffer for any number of samples; waits for a free slot."""
        view = memoryview(cast(Buffer, output)).cast("B")
        if view.readonly:
            raise InvalidInput(f"output {self.anchor.name!r} needs writable memory")
        slot = self.enqueue_lock()
        slot.data, slot.data_size = view, len(view)
        slot.write_complete_callback = write_complete_callback
        self.enqueue_complete()

    def flush(self) -> None:
        """Return a place for the rows that `InputQueue.flush` added, to be
        discarded.
        """
        with contextlib.suppress(QueueClosed):
            self.enqueue(bytearray(self._missing()))

    def reset(self) -> None:
        super().reset()
        self._current, self._filled = None, 0

    @property
    def has_room(self) -> bool:
        """Return whether a buffer waits to be filled."""
        return self._current is not None or self._ring.read_available()

    def put_batch(self, data: Buffer, alive: Alive) -> bool:
        """Copy the bytes of a compiled batch to the waiting buffers. Wait for buffers
        if there are none. Return False if the queue is disconnected.
        """
        view = memoryview(data)
        while view:
            if self._current is None:
                current = self._ring.read_lock(alive)
                if not self._ring.is_valid():
                    return False
                self._current, self._filled = current, 0
            current = self._current
            part = view[: current.data_size - self._filled]
            target = memoryview(current.data)
            target[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == current.data_size:
                callback = current.write_complete_callback
                self._current = None
                current.data = b""
                self._ring.read_complete()
                if callback is not None:
                    callback()
        return True
