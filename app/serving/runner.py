"""The parts of a model that requests need: a runner, and perhaps a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from app.codec.messages import InferRequest
from engine import EngineError, Tensor


class Submitted(Protocol):
    """The part of `engine.Request` that the front uses."""

    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> Exception | None: ...
    @property
    def outputs(self) -> Mapping[str, Tensor]: ...
    @property
    def queue_ns(self) -> int: ...
    @property
    def compute_ns(self) -> int: ...
    @property
    def batch_rows(self) -> int: ...
    @property
    def batch_length(self) -> int: ...
    @property
    def device_id(self) -> str: ...
    def abandon(self, error: EngineError) -> None: ...


class Runner(Protocol):
    """The part of `engine.ModelRunner` that the front uses.

    `on_done` is called once, in the event loop's thread: within `submit`, within
    `abandon`, or from the device's `poll`.
    """

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: Callable[[Any], None] | None = None,
        priority: int = 0,
    ) -> Submitted: ...


#: Receives the outputs of one of several responses.
OnResponse: TypeAlias = Callable[[Mapping[str, Tensor]], None]


class RequestScheduler(Protocol):
    """Scheduler that handles a whole request before its tensors go to the runner."""

    def submit(
        self, request: InferRequest, deadline: float, on_done: Callable[[Any], None]
    ) -> Submitted: ...
