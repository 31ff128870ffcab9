"""Ensembles as the server knows them: models that run other models. A plugin runs them.

`popgate.ensembles` is the group of its entry point (an `EnsembleKind`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.codec.messages import InferRequest
from app.config.declared import DeclaredTensors
from app.config.model_config import ModelConfig
from app.plugins import ENSEMBLES, plugins
from app.serving.runner import Submitted
from app.serving.table import ModelEntry, ModelTable
from app.spec import ModelSpec
from engine import Device, ModelRunnerConfig, Tensor

NO_PLUGIN = "it is an ensemble, but no plugin that runs ensembles is installed"


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
    def entries(self) -> list[ModelEntry | None]:
        """Return the present entries of its members."""

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


class EnsembleKind(Protocol):
    """Makes ensembles of `[ensemble]` in a configuration.

    `members` are the models of its steps, and `declared` are its declared tensors. The
    methods raise ValueError if they do not fit together.
    """

    def spec(
        self,
        name: str,
        version: str,
        config: ModelConfig,
        members: Sequence[ModelSpec],
        declared: DeclaredTensors,
    ) -> ModelSpec:
        """Return the ensemble as a model."""

    def ensemble(
        self,
        name: str,
        version: str,
        config: ModelConfig,
        members: Sequence[ModelSpec],
        declared: DeclaredTensors,
        table: ModelTable,
    ) -> Ensemble:
        """Return the ensemble, which runs the models of `table`."""

    def join(
        self, shared: bytes, members: Sequence[ModelSpec], table: ModelTable
    ) -> Ensemble:
        """Return an ensemble that another process has made (`Ensemble.shared`)."""


def label_of(number: int, model: str) -> str:
    """Return the name of a step for messages."""
    return f"step {number + 1} ({model})"


def ensemble_kind() -> EnsembleKind:
    """Return what makes ensembles. Raises ValueError if no plugin has it."""
    for kind in plugins(ENSEMBLES).values():
        found: EnsembleKind = kind
        return found
    raise ValueError(NO_PLUGIN)
