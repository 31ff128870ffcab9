"""Ensembles as the server knows them: models that run other models. A plugin runs them
(`ensemble_kind`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.codec.messages import InferRequest
from app.serving.runner import RequestScheduler, Submitted
from app.serving.stateful import StatefulScheduler
from app.spec import ModelSpec
from engine import Device, ModelRunnerConfig, Tensor

_NO_PLACE = "its requests use [sequence] or [responses], which an ensemble cannot run"
_CONVERTED = (
    "a plugin converts its requests first (a tokenizer or decoder), and an ensemble "
    "would skip that; call the model from a Python model instead"
)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the graph; each pair is (tensor of the model, tensor of the ensemble).

    `needs` counts the steps whose outputs this step needs. `followers` are the steps
    that need its own.
    """

    label: str
    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    needs: int = 0
    followers: tuple[int, ...] = ()


class Ensemble(ABC):
    """Runs the requests of an ensemble, in place of an `engine.ModelRunner`.

    `members` are the models of its `steps`, in the same order.
    """

    def __init__(
        self, spec: ModelSpec, steps: tuple[Step, ...], members: Sequence[ModelSpec]
    ) -> None:
        self.spec = spec
        self.steps = steps
        self.members = tuple(members)
        self.config = ModelRunnerConfig()

    @property
    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """Return the devices of its members; none if a member is not loaded."""

    @property
    @abstractmethod
    def serving(self) -> bool:
        """Return whether all of its members accept requests."""

    @property
    @abstractmethod
    def fits(self) -> bool:
        """Return whether it can run with its present members."""

    @property
    @abstractmethod
    def missing(self) -> str:
        """Return which member prevents it from running, and why; else empty."""

    @property
    @abstractmethod
    def is_current(self) -> bool:
        """Return whether its members are those of its graph or load on demand."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Return the number of its requests."""

    @property
    @abstractmethod
    def shared(self) -> bytes:
        """Return the graph for `EnsembleKind.join` in another process."""

    @abstractmethod
    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: Callable[[Any], None] | None = None,
        priority: int = 0,
        outputs: Sequence[str] | None = None,
    ) -> Submitted:
        """Start a request for these `outputs`. Raises RunnerClosed."""

    @abstractmethod
    def drain(self, timeout: float) -> bool:
        """Wait until no request is in flight, at most `timeout` seconds.

        For a thread.
        """

    @abstractmethod
    def close(self) -> None:
        """Fail the requests in flight, and accept no more."""


class EnsembleScheduler:
    """Tells an ensemble which outputs a request wants."""

    def __init__(self, runner: Ensemble) -> None:
        self._runner = runner

    def submit(
        self, request: InferRequest, deadline: float, on_done: Callable[[Any], None]
    ) -> Submitted:
        """Raise RunnerClosed."""
        return self._runner.submit(
            request.inputs,
            deadline=deadline,
            on_done=on_done,
            priority=request.priority,
            outputs=request.outputs,
        )

    def __repr__(self) -> str:
        return f"<EnsembleScheduler {self._runner!r}>"


def why_no_member(scheduler: RequestScheduler | None) -> str:
    """Return why a model with this scheduler cannot be a step; empty if it can be one.

    A step passes its tensors to the model's runner directly, without another scheduler.
    """
    if scheduler is None or isinstance(scheduler, EnsembleScheduler):
        return ""
    if isinstance(scheduler, StatefulScheduler):
        return _NO_PLACE
    return _CONVERTED


def label_of(number: int, model: str) -> str:
    """Return the name of a step for messages."""
    return f"step {number + 1} ({model})"
