"""Assembly of a model as requests see it, from its files and options.

Used to load a version, and to preview what would be loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from app.config.frozen_inputs import frozen_arrays
from app.config.model_config import ModelConfig
from app.config.priorities import queue_sizes
from app.config.ragged_config import RaggedConfig
from app.repository.compilers import GraphChanges
from app.repository.formats import FormatScheduler, decoder_of, format_named
from app.repository.python_models import is_generator
from app.repository.source import VersionSource
from app.serving.stateful import ReplicaRunner, StatefulScheduler, stateful_models
from app.spec import ModelSpec
from engine import (
    PYTHON_ANSWER,
    PYTHON_ROUTE,
    Array,
    Device,
    ModelInterface,
    ModelRunnerConfig,
    Tensor,
)
from popef_io import Model

#: The range of `channel_memory` for models that do not set it.
CHANNEL_MEMORY, MOST_CHANNEL_MEMORY = 256 << 20, 1 << 38


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits in seconds for loading a model with its warm-up, and for one run.

    0 means no limit.
    """

    load: float = 0.0
    run: float = 0.0


NO_LIMITS = TimeLimits()


def runner_config(
    config: ModelConfig,
    model: Model,
    placement: Mapping[int, Device],
    largest_body: int = 0,
    limits: TimeLimits = NO_LIMITS,
    optional: tuple[str, ...] = (),
) -> ModelRunnerConfig:
    """Return the engine's options of a model whose replicas run on `placement`.

    If `config` does not limit the size of requests, they may be as large as the
    accepted bodies, `largest_body` bytes, and never less than the engine's default.
    Raises `engine.InvalidConfig`, and ValueError for frozen inputs that do not fit.
    """
    channel_memory = config.channel_memory
    if channel_memory is None:
        channel_memory = min(max(largest_body, CHANNEL_MEMORY), MOST_CHANNEL_MEMORY)
    ragged = config.ragged or RaggedConfig()
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
        ragged=ragged.enabled and not config.preferred_batch_sizes,
        max_batch_tokens=ragged.max_batch_tokens,
        max_padding=ragged.max_padding,
        optional_outputs=optional,
        max_queue_size=config.max_queue_size,
        priority_levels=config.priority_levels,
        default_priority=config.default_priority,
        priority_queue_sizes=queue_sizes(config.priority),
        channel_memory=channel_memory,
        load_timeout=limits.load,
        run_timeout=_run_timeout(config, limits.run),
        batching=config.batching,
        batching_dim=config.batching_dim,
        # A request waits for others in its batch only if the model's owner wants that.
        timeout_ns=max(1, int(config.max_queue_delay * 1e9)),
        flush_on_waiting_outputs=True,
    )


def _run_timeout(config: ModelConfig, seconds: float) -> float:
    """Return the time limit of one run: at least as long as requests may take."""
    if not seconds:
        return 0.0
    return max(seconds, config.timeout or 0.0, config.max_timeout or 0.0)


@dataclass(frozen=True, slots=True)
class Assembled:
    """A version as it is run and as requests see it.

    `spec` has all its tensors, `visible` those that requests see. `notes` say which
    options have no effect.
    """

    spec: ModelSpec
    visible: ModelSpec
    scheduler: StatefulScheduler | FormatScheduler | None
    notes: tuple[str, ...] = ()


def graph_changes(source: VersionSource, config: ModelConfig) -> GraphChanges:
    """Return the changes to the model before it is compiled."""
    declared = source.declared
    recipe = b""
    if source.format:
        kind = format_named(source.format)
        recipe = orjson.dumps(kind.recipe(source.files, format_options(source, config)))
    return GraphChanges(
        declared.reshapes,
        declared.is_batched,
        named_optional_inputs(config),
        source.format,
        recipe.decode(),
        ragged_inputs(source, config),
    )


def ragged_inputs(
    source: VersionSource, config: ModelConfig
) -> tuple[tuple[str, float], ...]:
    """Return the inputs that declare a length, with their padding values.

    They are those of the configuration, or else of the model's format.
    """
    ragged = config.ragged or RaggedConfig()
    if not ragged.enabled:
        return ()
    found = ragged.inputs
    if source.format and not found:
        declares = getattr(format_named(source.format), "ragged", None)
        if declares is not None:
            found = declares(source.files, format_options(source, config))
    return tuple(sorted((name, float(pad)) for name, pad in found.items()))


def optional_outputs(source: VersionSource) -> tuple[str, ...]:
    """Return the outputs that a request receives only if it asks for them."""
    if not source.format:
        return ()
    found: tuple[str, ...] = getattr(
        format_named(source.format), "optional_outputs", ()
    )
    return found


def format_options(source: VersionSource, config: ModelConfig) -> Any:
    """Return the section that the format of a version reads."""
    written = config.sections.get(source.format)
    return format_named(source.format).section() if written is None else written


def named_optional_inputs(config: ModelConfig) -> tuple[str, ...]:
    """Return the inputs that requests may omit individually, as the options say."""
    optional = config.optional_inputs
    return optional if isinstance(optional, tuple) else ()


def assemble(
    name: str,
    source: VersionSource,
    config: ModelConfig,
    model: ModelInterface,
    runner: ReplicaRunner,
    defaults: Mapping[str, Array | None],
) -> Assembled:
    """Assemble a version that `runner` runs, as requests see it.

    `defaults` are the default values of its inputs (`CompileCache.defaults`). Raises
    ValueError if its options or declarations contradict `model`.
    """
    optional = config.optional_inputs
    spec = ModelSpec.from_runner(
        name,
        str(source.version),
        model,
        max_rows=config.max_request_rows,
        # A request that chooses one of several fused models omits the inputs of the
        # others.
        optional_inputs=optional if isinstance(optional, bool) else model.is_fused,
        labels={**model.labels, **config.labels},
    )
    spec = spec.without((PYTHON_ROUTE,), (PYTHON_ANSWER,))  # of its own routes
    spec = source.declared.applied(spec, config.max_batch_size)
    unknown = [n for n in named_optional_inputs(config) if n not in spec.inputs_by_name]
    if unknown:
        msg = (
            f"optional_inputs names {unknown[0]!r}; the model's inputs are "
            f"{', '.join(spec.inputs_by_name)}"
        )
        raise ValueError(msg)
    spec = replace(spec, defaults=_defaults(spec, defaults))
    scheduler = _scheduler(spec, runner, source, config)
    visible = spec if scheduler is None else scheduler.visible
    visible = source.declared.visible(visible, spec)
    return Assembled(
        spec, visible, scheduler, (*_without_effect(model, source, config),)
    )


def _without_effect(
    model: ModelInterface, source: VersionSource, config: ModelConfig
) -> Iterator[str]:
    if model.batches.ragged is None and ragged_inputs(source, config):
        why = model.ragged_reason or "the file was compiled without [ragged]"
        yield f"rows of different lengths run separately: {why}"
    if config.save_outputs and not model.model.metadata.program_flow.save:
        yield "save_outputs has no effect: the model has no save programs"


def _defaults(
    spec: ModelSpec, arrays: Mapping[str, Array | None]
) -> Mapping[str, Tensor]:
    """Return the defaults of inputs, each with one row if the model is batched."""
    found = {}
    for name, array in arrays.items():
        tensor = spec.inputs_by_name.get(name)
        if tensor is None:
            continue
        if array is None:  # the model does not use the input
            shape = [max(1, dim) for dim in tensor.shape or ()]
            array = np.zeros(shape, tensor.type.dtype)
            if not tensor.type.item_size:
                array = np.full(shape, b"", dtype=np.object_)
        if spec.is_batched and array.shape[:1] != (1,):
            msg = (
                f"input '{name}' is optional, and its default has shape "
                f"{list(array.shape)}; a batched model needs a first dimension of one"
            )
            raise ValueError(msg)
        if tensor.type.item_size:
            array = np.ascontiguousarray(array).view(tensor.type.dtype)
        found[name] = Tensor.from_numpy(array, tensor.data_type)
    return found


def _scheduler(
    spec: ModelSpec, runner: ReplicaRunner, source: VersionSource, config: ModelConfig
) -> StatefulScheduler | FormatScheduler | None:
    """Return the scheduler that fills in the hidden inputs. Raises ValueError."""
    decoder = decoder_of(config.sections)
    if decoder is not None:
        one, section = decoder
        _check_alone(spec, source, config)
        return one.scheduler(spec, runner, section)
    if source.format:
        if config.sequence is not None or config.responses is not None:
            raise ValueError(
                f"a model of the format {source.format} can have neither [sequence] "
                "nor [responses]"
            )
        kind, options = format_named(source.format), format_options(source, config)
        return kind.scheduler(spec, runner, source.files, options)
    if is_generator(spec, source, config):
        return stateful_models("a generator").generator(spec, runner)
    if config.sequence is None and config.responses is None:
        return None
    section = "[responses]" if config.sequence is None else "[sequence]"
    folder = source.files[0].parent
    models = stateful_models(section)
    return models.scheduler(spec, runner, config, folder, source.folder)


def _check_alone(spec: ModelSpec, source: VersionSource, config: ModelConfig) -> None:
    """Raise ValueError for a model whose requests already go through
    another scheduler.
    """
    others = {
        "a model of another format": bool(source.format),
        "a Python model that yields responses": is_generator(spec, source, config),
        "[sequence]": config.sequence is not None,
        "[responses]": config.responses is not None,
    }
    for what, is_there in others.items():
        if is_there:
            raise ValueError(
                f"a section that decodes inputs cannot be combined with {what}"
            )
