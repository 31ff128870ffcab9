"""From the files of one version to a runner that takes requests. For threads."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.compile_cache import CompileCache
from app.devices import GatewayDevices
from app.ensembles import EnsembleRunner
from app.model_config import ModelConfig
from app.priorities import queue_sizes
from app.scan import VersionSource
from app.sequences import SequenceScheduler
from app.spec import ModelSpec
from app.steps import StepScheduler
from app.warmup import WarmupFailed, warm_up
from engine import EngineError, ModelRunner, ModelRunnerConfig
from popef_io import PopefError

logger = logging.getLogger(__name__)


class LoadError(Exception):
    """A version that cannot be loaded; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A version that can be run, and what it was made from.

    `memory` is what it takes, in bytes, as far as `--model-memory` is concerned;
    `loaded_at` a `time.time()`; `warmed` says that it has run before it was ready.
    """

    spec: ModelSpec
    runner: ModelRunner | EnsembleRunner
    config: ModelConfig
    source: VersionSource
    memory: int
    loaded_at: float
    warmed: bool
    scheduler: SequenceScheduler | StepScheduler | None = None

    @property
    def version(self) -> str:
        return self.spec.version

    def is_from(self, source: VersionSource, config: ModelConfig) -> bool:
        """Whether loading that again would make no difference."""
        return self.config == config and self.source == source

    def __repr__(self) -> str:
        return f"<LoadedModel {self.spec.name}/{self.version} {self.runner!r}>"


class ModelLoader:
    """Loads versions onto the devices of a gateway. Thread-safe."""

    def __init__(self, devices: GatewayDevices, cache: CompileCache) -> None:
        self._devices = devices
        self._cache = cache

    def load(
        self,
        name: str,
        source: VersionSource,
        config: ModelConfig,
        replaces: LoadedModel | None = None,
    ) -> LoadedModel:
        """Compiles where needed, loads, describes and warms up. Raises `LoadError`.

        `replaces` serves in its place now. Where that was warmed up with values that
        were made up, they suit the model, and if they fail now the new one is at fault.
        """
        start = time.monotonic()
        label = f"{name}/{source.version}"
        with _explained(label):
            files = self._files(source)
            memory = self._memory(files, config)
            runner = self._open(label, files, config)
        try:
            spec = ModelSpec.from_runner(
                name,
                str(source.version),
                runner,
                max_rows=config.max_request_rows,
                optional_inputs=_optional(config, runner),
                labels=config.labels,
            )
            source.declared.check(spec)
            warmed = _warm_up(spec, runner, source, config, replaces)
            scheduler = _scheduler(spec, runner, source, config)
        except (ValueError, WarmupFailed) as e:
            runner.close()
            raise LoadError(str(e)) from e
        seconds = time.monotonic() - start
        logger.debug("model %s is loaded (%.3f s)", label, seconds)
        if scheduler is not None:
            spec = scheduler.visible
        return LoadedModel(
            spec, runner, config, source, memory, time.time(), warmed, scheduler
        )

    def memory_of(self, source: VersionSource, config: ModelConfig) -> int:
        """Bytes that a version would take, about. Compiles it where needed.

        Raises `LoadError`.
        """
        with _explained(str(source.version)):
            return self._memory(self._files(source), config)

    def _files(self, source: VersionSource) -> list[Path]:
        if source.problem:
            raise LoadError(source.problem)
        files = list(source.files)
        return [self._cache.popef_for(files[0])] if source.is_onnx else files

    def _memory(self, files: list[Path], config: ModelConfig) -> int:
        if config.memory is not None:
            return config.memory
        devices = self._devices.count_for(config.instances, config.devices)
        return devices * sum(path.stat().st_size for path in files)

    def _open(self, label: str, files: list[Path], config: ModelConfig) -> ModelRunner:
        return ModelRunner(
            files if len(files) > 1 else files[0],
            config=ModelRunnerConfig(
                replication_factor=config.instances,
                replica_to_device=self._devices.place(config.instances, config.devices),
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
                channel_memory=config.channel_memory,
                batching=config.batching,
                batching_dim=config.batching_dim,
                # Nothing waits for company unless the model's owner wants it to.
                timeout_ns=max(1, int(config.max_queue_delay * 1e9)),
            ),
            name=label,
        )


def _optional(config: ModelConfig, runner: ModelRunner) -> bool:
    """Whether requests may leave inputs out: those of a fused model may."""
    return runner.is_fused if config.optional_inputs is None else config.optional_inputs


@contextmanager
def _explained(label: str) -> Iterator[None]:
    """Turns whatever goes wrong into a `LoadError` that an operator understands."""
    try:
        yield
    except LoadError:
        raise
    except (EngineError, PopefError, ValueError) as e:
        raise LoadError(str(e)) from e
    except OSError as e:
        raise LoadError(f"cannot be read: {e}") from e
    except Exception as e:
        logger.exception("model %s: unexpected", label)
        raise LoadError(f"{type(e).__name__}: {e}; this is a bug") from e


def _warm_up(
    spec: ModelSpec,
    runner: ModelRunner,
    source: VersionSource,
    config: ModelConfig,
    replaces: LoadedModel | None,
) -> bool:
    """Whether it has run. Raises `WarmupFailed` where it should have."""
    try:
        return warm_up(spec, runner, config.warmup, source.folder)
    except WarmupFailed as e:
        if config.warmup is not None or (replaces is not None and replaces.warmed):
            raise
        logger.warning(
            "model %s/%s: %s; write a [warmup] section with values that suit it, "
            "or one with enabled = false",
            spec.name,
            spec.version,
            e,
        )
        return False


def _scheduler(
    spec: ModelSpec, runner: ModelRunner, source: VersionSource, config: ModelConfig
) -> SequenceScheduler | StepScheduler | None:
    """What fills in the inputs that requests do not see. Raises ValueError."""
    folder = source.files[0].parent
    if config.sequence is not None:
        return SequenceScheduler(spec, runner, config.sequence, folder)
    if config.responses is not None:
        return StepScheduler(spec, runner, config.responses, folder)
    return None
