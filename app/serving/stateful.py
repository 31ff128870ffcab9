"""Stateful models as the server knows them: the gateway keeps something between their
runs. A plugin of the group `popgate.stateful_models` runs them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from app.codec.messages import InferRequest
from app.config.model_config import ModelConfig
from app.plugins import STATEFUL_MODELS, first_plugin
from app.serving.runner import Runner, Submitted
from app.spec import ModelSpec
from engine import LinkedDevice, Tensor

NO_PLUGIN = "{} needs a plugin that runs stateful models, and none is installed"


class ReplicaRunner(Protocol):
    """The part of `engine.ModelRunner` that keeps a request on one replica."""

    @property
    def devices(self) -> Sequence[LinkedDevice]: ...
    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: Callable[[Any], None] | None = None,
        replica_id: int | None = None,
        priority: int = 0,
        optional: bool = False,
    ) -> Submitted: ...


class StatefulScheduler(ABC):
    """Runs the requests of one version of a stateful model. For the event loop's
    thread.

    `visible` has the tensors that requests see. If requests may have any number of
    responses, it is a `ResponseScheduler` as well.
    """

    #: Whether requests form sequences, whose states this process keeps.
    has_sequences: bool = False
    #: Whether a request may have any number of responses.
    gives_several: bool = False
    #: All tensors of a generator, which each HTTP worker may run with a scheduler of
    #: its own. None if only one process can run the model.
    generator: ModelSpec | None = None

    def __init__(self, visible: ModelSpec) -> None:
        self.visible = visible

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for another one to end."""
        return 0

    @property
    def is_open(self) -> bool:
        """Return whether a sequence is open, so that the model must stay in memory."""
        return False

    @property
    def example_parameters(self) -> Mapping[str, Any]:
        """Return the parameters that every request needs, with examples of values."""
        return {}

    @abstractmethod
    def submit(
        self, request: InferRequest, deadline: float, on_done: Callable[[Any], None]
    ) -> Submitted:
        """Run a request with one response; never blocks.

        `on_done` is called once, whatever the outcome. Raises `InvalidRequest`,
        `engine.QueueFull`, and the runner's errors.
        """

    async def drain(self, seconds: float) -> None:
        """Wait until every request has had its last response, at most `seconds`."""
        return


class StatefulModels(Protocol):
    """Makes the schedulers of stateful models."""

    def scheduler(
        self,
        spec: ModelSpec,
        runner: Runner,
        config: ModelConfig,
        folder: Path,
        model_folder: Path | None,
    ) -> StatefulScheduler:
        """Return the scheduler of a model with `[sequence]` or `[responses]`.

        `spec` has all tensors of the model. Files of initial states are in `folder` or
        below `model_folder`. Raises ValueError if they do not fit the model.
        """

    def generator(self, spec: ModelSpec, runner: ReplicaRunner) -> StatefulScheduler:
        """Return the scheduler of a Python model that yields its responses."""


def stateful_models(asking: str) -> StatefulModels:
    """Return the plugin's object.

    Raises ValueError if no plugin runs stateful models. The message names `asking`, the
    cause in the model.
    """
    found: StatefulModels | None = first_plugin(STATEFUL_MODELS)
    if found is None:
        raise ValueError(NO_PLUGIN.format(asking))
    return found
