"""A request in flight: the code that waits for it, and its end."""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from engine.errors import Cancelled, EngineError
from engine.tensor import Tensor
from engine.transport.output_arrays import OutputArrays

logger = logging.getLogger(__name__)

OnDone = Callable[["Request"], None]


class Request:
    """One request to a replica. It is resolved exactly once: by `poll`, by `cancel`, or
    when the device process dies.

    `outputs` (owned copies, by name) is set if `error` is None, unless they were copied
    `into` arrays (engine/transport/output_arrays.py). `submitted_ns` is when the
    request was put into its queue (CLOCK_MONOTONIC). `queue_ns` is the time from then
    until its batch started, and `compute_ns` is how long the batch ran. For an
    abandoned request, both count only until then. `batch_rows` is the number of rows of
    the batch. `batch_length` is the longest row if rows of different length run
    together, else 0. `began_ns` is when the caller began if the request's times are
    recorded, else 0 (engine/runner/tracepoints.py). `predicted_ns` is when the request
    was predicted to be done, or 0 without a prediction (engine/runner/service_time.py).
    `flags` are those of its descriptor (engine/transport/channel.py). `on_done` is
    called in the thread that resolves the request and must not block. Its exceptions
    are logged.
    """

    __slots__ = (
        "batch_length",
        "batch_rows",
        "began_ns",
        "channel",
        "compute_ns",
        "deadline_ns",
        "device_id",
        "done",
        "error",
        "flags",
        "into",
        "number",
        "on_done",
        "outputs",
        "predicted_ns",
        "queue_ns",
        "rows",
        "slot",
        "submitted_ns",
    )

    def __init__(
        self,
        channel: RequestChannel,
        number: int,
        rows: int,
        deadline_ns: int,
        on_done: OnDone | None,
        into: OutputArrays | None = None,
        flags: int = 0,
    ) -> None:
        self.channel = channel
        self.device_id = channel.device_id
        self.number = number
        self.rows = rows
        self.deadline_ns = deadline_ns
        self.began_ns = 0
        self.predicted_ns = 0
        self.on_done = on_done
        self.into = into
        self.flags = flags
        self.done = False
        self.error: EngineError | None = None
        self.outputs: Mapping[str, Tensor] = {}
        self.submitted_ns = self.queue_ns = self.compute_ns = self.batch_rows = 0
        self.batch_length = 0
        self.slot = -1

    def move(self, channel: RequestChannel, number: int) -> None:
        """Move the request, which has not begun, to another channel as its request
        `number`.
        """
        self.channel, self.number = channel, number
        self.slot, self.predicted_ns = -1, 0

    def cancel(self) -> None:
        """Cancel the request: drop it if it has not begun, else discard its result."""
        self.abandon(Cancelled("the request was cancelled"))

    def abandon(self, error: EngineError) -> None:
        """Cancel the request for another reason, such as a passed deadline."""
        self.channel.abandon(self, error)

    def resolve(self, error: EngineError | None = None) -> None:
        """End the request. Only its channel calls this."""
        if self.done:
            return
        self.error = error
        self.done = True
        # Drop the callback. It usually refers to this request, and the cycle would keep
        # the outputs alive until the next garbage collection.
        on_done, self.on_done = self.on_done, None
        if on_done is not None:
            try:
                on_done(self)
            except Exception:
                # Other results came with this one and must not be lost, even if memory
                # is too short to log this error.
                with contextlib.suppress(Exception):
                    logger.exception("on_done of %r failed", self)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the request is done, at most `timeout` seconds. Return whether it
        is done.
        """
        return self.channel.wait(self, timeout)

    def __repr__(self) -> str:
        state = "waiting"
        if self.done:
            state = "done" if self.error is None else f"failed: {self.error}"
        return f"<Request {self.number}, {self.rows} rows, {state}>"


class RequestChannel(ABC):
    """The channel to one replica, from the view of its device and its requests.

    Runners implement it (engine/runner/replica_channel.py). A device calls `finish`,
    `fail_all` and `close` with its lock held, in the thread that polls.
    """

    #: The device that the replica is on.
    device_id: str
    #: The number of the replica in its device process, and of the channel in
    #: completions.
    replica: int
    number: int
    #: The priority level of the channel's requests, 1 being the highest. 0 if the model
    #: has no levels.
    priority: int
    #: Its share compared with other channels of its level. 0 counts as 1.
    weight: int
    #: Its number among the channels of the same weight.
    lane: int
    #: The time limit of a run of the model in seconds, 0 for none.
    run_timeout: float

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Return the number of requests in flight."""

    @property
    @abstractmethod
    def waiting(self) -> list[Request]:
        """Return the requests in flight, oldest first."""

    @property
    @abstractmethod
    def started(self) -> list[Request]:
        """Return the requests that a run has taken, oldest first."""

    @abstractmethod
    def request_of(self, number: int) -> Request | None:
        """Return the request of this number, while it is in flight."""

    @abstractmethod
    def finish(
        self,
        outcome: int,
        number: int,
        queue_ns: int,
        compute_ns: int,
        rows: int,
        longest: int,
        text: str,
    ) -> None:
        """Finish request `number` after its completion has come."""

    @abstractmethod
    def abandon(self, request: Request, error: EngineError) -> None:
        """Resolve a request now, with `error`. Callable from any thread."""

    @abstractmethod
    def wait(self, request: Request, timeout: float | None) -> bool:
        """Block until a request is done, at most `timeout` seconds. Return whether it
        is done.
        """

    @abstractmethod
    def fail_all(self, error: EngineError) -> None:
        """Resolve all requests with `error`."""

    def lose(self, error: EngineError) -> Callable[[], None] | None:
        """Fail all requests because the device was lost. Return work that must be done
        without the device's lock.
        """
        self.fail_all(error)
        return None

    @abstractmethod
    def close(self) -> None:
        """Take no more requests, and release the memory."""
