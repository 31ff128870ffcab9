"""`EnsembleKind`: what a plugin of the group `popgate.ensembles` provides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.config.declared import DeclaredTensors
from app.config.model_config import ModelConfig
from app.plugins import ENSEMBLES, first_plugin
from app.serving.ensemble import Ensemble
from app.serving.table import ModelTable
from app.spec import ModelSpec

NO_PLUGIN = "it is an ensemble, but no plugin that runs ensembles is installed"


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


def ensemble_kind() -> EnsembleKind:
    """Return what makes ensembles. Raises ValueError if no plugin has it."""
    found: EnsembleKind | None = first_plugin(ENSEMBLES)
    if found is None:
        raise ValueError(NO_PLUGIN)
    return found
