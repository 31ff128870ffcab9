"""`QueueManager`: one queue for each anchor of the main programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from engine.errors import UnknownAnchor
from engine.queues import InputQueue, OutputQueue, TimeoutCallback
from popef_io import Anchor

#: Whether an anchor gets a queue (Model Runtime: `AnchorCallbackPredicate`).
AnchorPredicate = Callable[[Anchor], bool]


class QueueManager:
    """The queues of a session; made by `Session.create_queue_manager`.

    `num_buffers` user batches fit in each queue; `timeout_cb(ring)` is called after
    each `timeout_ns` nanoseconds for which a batch misses data of an input.
    """

    def __init__(
        self,
        inputs: Iterable[Anchor],
        outputs: Iterable[Anchor],
        num_buffers: int = 8,
        timeout_cb: TimeoutCallback | None = None,
        timeout_ns: int = 0,
        predicate: AnchorPredicate | None = None,
    ) -> None:
        self.inputs = {
            anchor.name: InputQueue(anchor, num_buffers, timeout_cb, timeout_ns)
            for anchor in inputs
            if predicate is None or predicate(anchor)
        }
        self.outputs = {
            anchor.name: OutputQueue(anchor, num_buffers)
            for anchor in outputs
            if predicate is None or predicate(anchor)
        }

    def input_queue(self, name: str) -> InputQueue:
        """The queue of an input; UnknownAnchor where there is none."""
        try:
            return self.inputs[name]
        except KeyError:
            raise _unknown("input", name, self.inputs) from None

    def output_queue(self, name: str) -> OutputQueue:
        """The queue of an output; UnknownAnchor where there is none."""
        try:
            return self.outputs[name]
        except KeyError:
            raise _unknown("output", name, self.outputs) from None

    def flush_all(self) -> None:
        """Complete partial batches with zeros, and make room for what comes of it."""
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

    def _all(self) -> Iterable[InputQueue | OutputQueue]:
        return chain(self.inputs.values(), self.outputs.values())

    def __repr__(self) -> str:
        return f"<QueueManager {list(self._all())}>"


def _unknown(kind: str, name: str, known: Iterable[str]) -> UnknownAnchor:
    return UnknownAnchor(f"there is no {kind} queue {name!r}; there are {list(known)}")
