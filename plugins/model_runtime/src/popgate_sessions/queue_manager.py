"""`QueueManager`: the queues of a session, one for each chosen anchor."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from itertools import chain
from typing import TypeVar

from engine.errors import UnknownAnchor
from popef_io import Anchor
from popgate_sessions.predicates import RingSizeMultiplier
from popgate_sessions.queues import (
    InputQueue,
    OutputQueue,
    RunningThread,
    TimeoutCallback,
    batch_rows,
)

Queue = TypeVar("Queue", InputQueue, OutputQueue)


class QueueManager:
    """The queues of a session; made by `Session.create_queue_manager`.

    Each queue has room for `num_buffers` user batches. If that is a function, the room
    is its value times the rows of the compiled batch. `timeout_cb(ring)` is called
    after each `timeout_ns` nanoseconds for which a run waits for data of an input (0:
    never), in the thread of that run.
    """

    def __init__(
        self,
        inputs: Iterable[Anchor],
        outputs: Iterable[Anchor],
        num_buffers: int | RingSizeMultiplier,
        timeout_cb: TimeoutCallback | None = None,
        timeout_ns: int = 0,
    ) -> None:
        #: Set by the session while it runs programs.
        self.running = RunningThread()
        self.inputs = {
            anchor.name: InputQueue(
                anchor,
                _buffers(num_buffers, anchor),
                timeout_cb,
                timeout_ns,
                self.running,
            )
            for anchor in inputs
        }
        self.outputs = {
            anchor.name: OutputQueue(
                anchor, _buffers(num_buffers, anchor), self.running
            )
            for anchor in outputs
        }

    def input_queue(self, name: str) -> InputQueue:
        """Return the queue of an input, by the name of its tensor or the handle of its
        stream. Raises UnknownAnchor if there is none.
        """
        return _find("input", name, self.inputs)

    def output_queue(self, name: str) -> OutputQueue:
        """Return the queue of an output, by the same names."""
        return _find("output", name, self.outputs)

    def flush_all(self) -> None:
        """Complete partial batches with zeros, and make room for their results."""
        for queue in self._all():
            queue.flush()

    def disconnect_all(self) -> None:
        """Make every wait on a queue return."""
        for queue in self._all():
            queue.disconnect()

    def reset_all(self) -> None:
        """Empty all queues, after the session was stopped."""
        for queue in self._all():
            queue.reset()

    def reset_disconnected(self) -> None:
        """Empty the queues that were disconnected."""
        for queue in self._all():
            if not queue.is_connected:
                queue.reset()

    def _all(self) -> Iterable[InputQueue | OutputQueue]:
        return chain(self.inputs.values(), self.outputs.values())

    def __repr__(self) -> str:
        return f"<QueueManager {list(self._all())}>"


def _buffers(num_buffers: int | RingSizeMultiplier, anchor: Anchor) -> int:
    if not callable(num_buffers):
        return operator.index(num_buffers)
    multiplier = operator.index(num_buffers(anchor))
    return multiplier * max(1, batch_rows(anchor.tensor_info))


def _find(kind: str, name: str, queues: dict[str, Queue]) -> Queue:
    queue = queues.get(name)
    if queue is None:
        queue = next((q for q in queues.values() if q.anchor.handle == name), None)
    if queue is None:
        raise UnknownAnchor(
            f"there is no {kind} queue {name!r}; the queues are {list(queues)}"
        )
    return queue
