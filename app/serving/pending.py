"""Requests in flight in the gateway, which consist of requests to devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from app.codec.messages import InferRequest
from app.observe.token_metrics import TokenCounts
from app.serving.runner import OnResponse, Submitted
from engine import EngineError, InvalidInput, Tensor


class NotOneResponse(InvalidInput):
    """The model gave no response, or several, but exactly one is expected."""


class Pending:
    """A pending result, resolved exactly once, in the event loop's thread.

    `outputs` are set if `error` is None. `queue_ns` and `compute_ns` are the total
    times of its runs. `batch_rows` is the rows of its batch, `batch_length` the longest
    row if rows have lengths, and `device_id` the device. A subclass defines how it is
    cancelled (`give_up`), and calls `resolve`.
    """

    done: bool = False
    #: An `engine.EngineError`, or an error of the gateway itself.
    error: Any = None
    queue_ns: int = 0
    compute_ns: int = 0
    batch_rows: int = 0
    batch_length: int = 0
    device_id: str = ""
    #: The token counts of a text model.
    tokens: TokenCounts | None = None

    def __init__(
        self,
        inputs: Mapping[str, Tensor],
        deadline: float | None,
        on_done: Callable[[Any], None] | None,
        priority: int,
    ) -> None:
        self.inputs = dict(inputs)
        self.deadline = deadline
        self.priority = priority
        self.outputs: Mapping[str, Tensor] = {}
        self.on_done = on_done

    def abandon(self, error: EngineError) -> None:
        """Cancel it, and the runs for it."""
        if not self.done:
            self.give_up(error)
            self.resolve(error)

    def give_up(self, error: EngineError) -> None:
        """End the runs for it, which may resolve it."""

    def resolve(self, error: Exception | None = None) -> None:
        """Mark the request as done, with any outcome."""
        if not self.done:
            self.done, self.error = True, error
            self.notify()

    def notify(self) -> None:
        """Call the callback, once."""
        # The callback refers to this object. Nothing may wait for the garbage
        # collector.
        on_done, self.on_done = self.on_done, None
        if on_done is not None:
            on_done(self)

    def __repr__(self) -> str:
        state = "under way"
        if self.done:
            state = "done" if self.error is None else f"failed: {self.error}"
        return f"<{type(self).__name__} {state}>"


class Streamed(Submitted, Protocol):
    """A request in flight that may have several responses."""

    def proceed(self) -> None: ...


@runtime_checkable
class ResponseScheduler(Protocol):
    """A scheduler that gives the responses of a request one by one."""

    def stream(
        self,
        request: InferRequest,
        deadline: float,
        on_response: OnResponse,
        on_done: Callable[[Any], None],
    ) -> Streamed: ...


@runtime_checkable
class IteratingRunner(Protocol):
    """A runner that distinguishes the results of device iterations."""

    def iterations_of(
        self, outputs: Mapping[str, Tensor]
    ) -> list[Mapping[str, Tensor]]: ...
