"""`KIND`: makes the schedulers of the server's stateful models."""

from __future__ import annotations

from pathlib import Path

from app.config.model_config import ModelConfig
from app.serving.runner import Runner
from app.serving.stateful import ReplicaRunner, StatefulScheduler
from app.spec import ModelSpec
from popgate_stateful.generators import GeneratorScheduler
from popgate_stateful.sequences import SequenceScheduler
from popgate_stateful.steps import StepScheduler


class _StatefulKind:
    """Makes schedulers (`app.serving.stateful.StatefulModels`)."""

    def scheduler(
        self,
        spec: ModelSpec,
        runner: Runner,
        config: ModelConfig,
        folder: Path,
        model_folder: Path | None,
    ) -> StatefulScheduler:
        """Return the scheduler of a model with a section of this plugin. Raises
        ValueError.
        """
        if config.sequence is not None:
            return SequenceScheduler(
                spec,
                runner,
                config.sequence,
                folder,
                model_folder,
                instances=config.instances,
            )
        assert config.responses is not None
        return StepScheduler(spec, runner, config.responses, folder, model_folder)

    def generator(self, spec: ModelSpec, runner: ReplicaRunner) -> GeneratorScheduler:
        """Return the scheduler of a model that is a generator."""
        return GeneratorScheduler(spec, runner)

    def __repr__(self) -> str:
        return "<stateful models>"


KIND = _StatefulKind()
