# ruff: noqa: N802 - the names are the original's
"""Queues of a session (Model Runtime User Guide, queue management).

The memory that is enqueued is not copied, and must stay until its callback is called.
The enqueueing side of a queue is for one thread. Calls of a disconnected queue return
at once, without effect or error, as in the original.
"""

from __future__ import annotations

import contextlib
from typing import Any, SupportsIndex

import engine
import popgate_sessions
from model_runtime.arguments import optional_callback
from model_runtime.memory import ByName
from model_runtime.queue_data import (
    InputData,
    OutputData,
    ReadCompleteCallback,
    ReadStartCallback,
    WriteCompleteCallback,
    bytes_of,
)
from model_runtime.ring import RingMemoryPool
from popef import TensorInfo
from popef.taking import NotPickled, Text, expected, number, text


def _unless_disconnected() -> contextlib.AbstractContextManager[None]:
    return contextlib.suppress(engine.QueueClosed)


class IQueue(NotPickled):
    """Common part of both kinds of queues; made by `QueueManager`."""

    def __init__(
        self, queue: popgate_sessions.InputQueue | popgate_sessions.OutputQueue
    ) -> None:
        self._queue = queue

    def tensorInfo(self) -> TensorInfo:
        """Return shape and type of one compiled batch."""
        return TensorInfo.from_io(self._queue.tensor_info)

    def numBuffers(self) -> int:
        """Return how many user batches the queue has room for."""
        return self._queue.num_buffers

    def disconnect(self) -> None:
        """Make all waits return; ignore their results."""
        self._queue.disconnect()

    def reset(self) -> None:
        """Empty the queue, after the session was stopped."""
        self._queue.reset()

    def flush(self) -> None:
        """Complete a partial batch, with zeros or with room for their results; without
        a partial batch, add a whole one.
        """
        self._queue.flush()

    def _allocate(self, extra_buffers: int) -> popgate_sessions.RingMemoryPool:
        """Allocate the pool for `allocateQueueStorage`."""
        return popgate_sessions.allocate_queue_storage(self._queue, extra_buffers)

    def enqueueComplete(self) -> None:
        """Publish the slot that was locked."""
        with _unless_disconnected():
            self._queue.enqueue_complete()

    def __repr__(self) -> str:
        return repr(self._queue)


class InputQueue(IQueue):
    """Takes batches of any number of rows."""

    def __init__(self, queue: popgate_sessions.InputQueue) -> None:
        super().__init__(queue)
        self._input = queue

    def enqueueLock(self) -> InputData:
        """Return a slot to fill, waiting for a free one; then `enqueueComplete`."""
        with _unless_disconnected():
            return InputData(self._input.enqueue_lock())
        return InputData()

    def enqueue(
        self,
        input: Any,  # noqa: A002 - as above
        data_size: SupportsIndex | None = None,
        read_start_callback: ReadStartCallback | None = None,
        read_complete_callback: ReadCompleteCallback | None = None,
    ) -> None:
        """Queue `data_size` bytes of `input`; without a size, all of them."""
        view = bytes_of(input, data_size)
        start = optional_callback("read_start_callback", read_start_callback)
        complete = optional_callback("read_complete_callback", read_complete_callback)
        with _unless_disconnected():
            self._input.enqueue(view, start, complete)


class OutputQueue(IQueue):
    """Takes room for batches of any number of rows."""

    def __init__(self, queue: popgate_sessions.OutputQueue) -> None:
        super().__init__(queue)
        self._output = queue

    def enqueueLock(self) -> OutputData:
        """Return a slot to fill, waiting for a free one; then `enqueueComplete`."""
        with _unless_disconnected():
            return OutputData(self._output.enqueue_lock())
        return OutputData()

    def enqueue(
        self,
        output: Any,
        data_size: SupportsIndex | None = None,
        write_complete_callback: WriteCompleteCallback | None = None,
    ) -> None:
        """Queue room for `data_size` bytes in `output`; without a size, all of it."""
        view = bytes_of(output, data_size)
        written = optional_callback("write_complete_callback", write_complete_callback)
        with _unless_disconnected():
            self._output.enqueue(view, written)


class QueueManager(NotPickled):
    """The queues of a session; made by `Session.createQueueManager`.

    `inputs` and `outputs` lead from the names of tensors to their queues.
    """

    def __init__(self, manager: popgate_sessions.QueueManager) -> None:
        self._manager = manager
        self.inputs = ByName({k: InputQueue(q) for k, q in manager.inputs.items()})
        self.outputs = ByName({k: OutputQueue(q) for k, q in manager.outputs.items()})

    def inputQueue(self, name: Text) -> InputQueue:
        """Return the queue of an input, by the name of its tensor or the handle of
        its stream; raises if there is none.
        """
        return self.inputs[self._manager.input_queue(text(name)).anchor.name]

    def outputQueue(self, name: Text) -> OutputQueue:
        """Return the queue of an output, by the same names."""
        return self.outputs[self._manager.output_queue(text(name)).anchor.name]

    def flushAll(self) -> None:
        """Flush all queues."""
        self._manager.flush_all()

    def disconnectAll(self) -> None:
        """Disconnect all queues: runs of programs, and waits for a queue, return."""
        self._manager.disconnect_all()

    def resetAll(self) -> None:
        """Reset all queues, after the session was stopped."""
        self._manager.reset_all()

    def __repr__(self) -> str:
        return repr(self._manager)


def allocateQueueStorage(
    queue: IQueue, extra_buffers: SupportsIndex = 0
) -> RingMemoryPool:
    """Allocate memory for as many compiled batches as the queue has buffers, and some
    more.
    """
    return RingMemoryPool.of(expected(queue, IQueue)._allocate(number(extra_buffers)))
