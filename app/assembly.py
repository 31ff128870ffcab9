"""What a model is as requests see it, from its files and its options.

Used to load it, and to say what would be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from app.frozen_inputs import frozen_arrays
from app.model_config import ModelConfig
from app.priorities import queue_sizes
from app.scan import VersionSource
from app.sequences import SequenceScheduler
from app.spec import DescribesTensors, ModelSpec
from app.steps import StepScheduler
from app.table import Runner
from engine import Device, ModelRunnerConfig
from popef_io import Model

#: `channel_memory` of models that do not say, at least and at most.
CHANNEL_MEMORY, MOST_CHANNEL_MEMORY = 256 << 20, 1 << 38

Scheduler: TypeAlias = SequenceScheduler | StepScheduler


class DescribesModel(DescribesTensors, Protocol):
    """The part of a model, loaded or not, that a spec is made of."""

    @property
    def is_fused(self) -> bool: ...


def runner_config(
    config: ModelConfig,
    model: Model,
    placement: Mapping[int, Device],
    largest_body: int = 0,
) -> ModelRunnerConfig:
    """The engine's options of a model whose replicas run on `placement`.

    Where `config` does not say how large requests may be, they may be as large as the
    bodies that are taken, `largest_body` bytes, and never less than the engine's own.
    Raises `engine.InvalidConfig`, ValueError for frozen inputs that do not suit it.
    """
    channel_memory = config.channel_memory
    if channel_memory is None:
        channel_memory = min(max(largest_body, CHANNEL_MEMORY), MOST_CHANNEL_MEMORY)
    return ModelRunnerConfig(
        replication_factor=config.instances,
        replica_to_device=placement,
        frozen_inputs=frozen_arrays(model, config.frozen_inputs),
        check_package_hash=config.check_package_hash,
        validate_io_params=False,  # the front has checked every request
        auto_reset=True,
        max_batch_size=config.max_batch_size,
        preferred_batch_sizes=config.preferred_batch_sizes,
        max_queue_delay=config.max_queue_delay,
        max_queue_size=config.max_queue_size,
        priority_levels=config.priority_levels,
        default_priority=config.default_priority,
        priority_queue_sizes=queue_sizes(config.priority),
        channel_memory=channel_memory,
        batching=config.batching,
        batching_dim=config.batching_dim,
        # Nothing waits for company unless the model's owner wants it to.
        timeout_ns=max(1, int(config.max_queue_delay * 1e9)),
        flush_on_waiting_outputs=True,
    )


def make_spec(
    name: str, source: VersionSource, config: ModelConfig, model: DescribesModel
) -> ModelSpec:
    """The spec of all tensors of a version. Raises ValueError where options differ."""
    optional = config.optional_inputs
    spec = ModelSpec.from_runner(
        name,
        str(source.version),
        model,
        max_rows=config.max_request_rows,
        # Those who choose a model of a fused one leave out the others' inputs.
        optional_inputs=model.is_fused if optional is None else optional,
        labels=config.labels,
    )
    source.declared.check(spec)
    return spec


def make_scheduler(
    spec: ModelSpec, runner: Runner, source: VersionSource, config: ModelConfig
) -> Scheduler | None:
    """What fills in the inputs that requests do not see. Raises ValueError."""
    folder = source.files[0].parent
    if config.sequence is not None:
        return SequenceScheduler(spec, runner, config.sequence, folder)
    if config.responses is not None:
        return StepScheduler(spec, runner, config.responses, folder)
    return None
