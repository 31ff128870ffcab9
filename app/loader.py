"""From the files of one version to a runner that takes requests. For threads."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from app.compile_cache import CompileCache
from app.devices import GatewayDevices
from app.model_config import ModelConfig
from app.scan import VersionSource
from app.spec import ModelSpec
from engine import EngineError, ModelRunner, ModelRunnerConfig
from popef_io import PopefError

logger = logging.getLogger(__name__)


class LoadError(Exception):
    """A version that cannot be loaded; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A version that can be run, and what it was made from."""

    spec: ModelSpec
    runner: ModelRunner
    config: ModelConfig
    fingerprint: tuple[object, ...]

    @property
    def version(self) -> str:
        return self.spec.version

    def __repr__(self) -> str:
        return f"<LoadedModel {self.spec.name}/{self.version} {self.runner!r}>"


class ModelLoader:
    """Loads versions onto the devices of a gateway. Thread-safe."""

    def __init__(self, devices: GatewayDevices, cache: CompileCache) -> None:
        self._devices = devices
        self._cache = cache

    def load(
        self, name: str, source: VersionSource, config: ModelConfig
    ) -> LoadedModel:
        """Compiles where needed, loads, and describes. Raises `LoadError`."""
        if source.problem:
            raise LoadError(source.problem)
        start = time.monotonic()
        try:
            fingerprint = source.fingerprint()
            runner = self._open(f"{name}/{source.version}", source, config)
        except (EngineError, PopefError, ValueError) as e:
            raise LoadError(str(e)) from e
        except OSError as e:
            raise LoadError(f"cannot be read: {e}") from e
        except Exception as e:
            logger.exception("model %s/%d: unexpected", name, source.version)
            raise LoadError(f"{type(e).__name__}: {e}; this is a bug") from e
        try:
            spec = ModelSpec.from_runner(
                name, str(source.version), runner, max_rows=config.max_request_rows
            )
        except ValueError as e:
            runner.close()
            raise LoadError(str(e)) from e
        seconds = time.monotonic() - start
        logger.debug("model %s/%d is loaded (%.3f s)", name, source.version, seconds)
        return LoadedModel(spec, runner, config, fingerprint)

    def _open(
        self, label: str, source: VersionSource, config: ModelConfig
    ) -> ModelRunner:
        files = list(source.files)
        if source.is_onnx:
            files = [self._cache.popef_for(files[0])]
        return ModelRunner(
            files if len(files) > 1 else files[0],
            config=ModelRunnerConfig(
                replication_factor=config.instances,
                replica_to_device=self._devices.place(config.instances, config.devices),
                check_package_hash=config.check_package_hash,
                validate_io_params=False,  # the front has checked every request
                auto_reset=True,
                max_batch_size=config.max_batch_size,
                max_queue_delay=config.max_queue_delay,
                max_queue_size=config.max_queue_size,
                channel_memory=config.channel_memory,
                batching=config.batching,
            ),
            name=label,
        )
