"""Loading of one version: from its files to a runner that accepts requests. For
threads.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from app.config.model_config import ModelConfig
from app.repository.assembly import (
    NO_LIMITS,
    Assembled,
    TimeLimits,
    assemble,
    graph_changes,
    named_optional_inputs,
    optional_outputs,
    runner_config,
)
from app.repository.compilers import CompileCache
from app.repository.devices import GatewayDevices
from app.repository.load_errors import LoadError, explained
from app.repository.python_models import check_kind, process_options, read_model
from app.repository.records import LoadedModel
from app.repository.source import VersionSource
from app.repository.warmup import WarmupFailed, run_example, warm_up
from app.serving.calls.parent_request import FindRequest
from app.serving.route_table import ModelRoute, ModelRoutes
from app.spec import ModelSpec
from engine import Array, Device, DeviceFailed, DeviceLost, ModelRunner, open_model

logger = logging.getLogger(__name__)


NO_PLUGIN = "it calls other models, but no plugin that serves such calls is installed"
#: The most attempts to load a model if other models cause the loss of its device.
MOST_TRIES = 5


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A version to load until a `time.monotonic()`. It replaces one that serves now."""

    name: str
    source: VersionSource
    config: ModelConfig
    replaces: LoadedModel | None
    until: float

    @property
    def label(self) -> str:
        return f"{self.name}/{self.source.version}"


@dataclass(eq=False, repr=False)
class ModelLoader:
    """Loads versions onto the devices of a gateway. Thread-safe.

    `_largest_body` is the most bytes of a request. `_limits` are the time limits of
    loading and of a run. `_allow_python` allows folders with code. `_on_calls` handles
    the calls of such models to others, and `_claim` claims their own routes.
    """

    _devices: GatewayDevices
    _cache: CompileCache
    _largest_body: int = 0
    _limits: TimeLimits = NO_LIMITS
    _allow_python: bool = False
    _on_calls: Callable[[str, FindRequest, socket.socket], None] | None = None
    _claim: Callable[[str, Sequence[ModelRoute]], None] = lambda name, routes: None
    _again: threading.Lock = field(default_factory=threading.Lock, init=False)

    def load(
        self,
        name: str,
        source: VersionSource,
        config: ModelConfig,
        replaces: LoadedModel | None = None,
    ) -> LoadedModel:
        """Compile if needed, load, describe and warm up. Raises `LoadError`.

        If a device is lost meanwhile, the model is loaded again on the restarted
        device, until it is known to have caused the crash. `replaces` is the version
        that serves now. If synthetic values have warmed that version up, they fit the
        model. If they fail now, the new version is at fault.
        """
        start = time.monotonic()
        until = start + self._limits.load if self._limits.load else math.inf
        wanted = _Wanted(name, source, config, replaces, until)
        with explained(wanted.label):
            if source.problem:
                raise LoadError(source.problem)
            check_kind(source, config, allowed=self._allow_python)
            if source.is_python:
                return self._load_python(wanted)
            placement = self._devices.place(config.instances, config.devices)
            try:
                loaded = self._load_once(wanted, placement)
            except DeviceFailed:
                raise
            except DeviceLost as e:
                loaded = self._load_again(wanted, placement, e)
        seconds = time.monotonic() - start
        logger.debug("model %s is loaded (%.3f s)", wanted.label, seconds)
        return loaded

    def _load_again(
        self, wanted: _Wanted, placement: Mapping[int, Device], error: DeviceLost
    ) -> LoadedModel:
        # Models are loaded again one by one, so that the one at fault can be
        # identified.
        with self._again:
            for _ in range(MOST_TRIES - 1):
                logger.warning("model %s: %s; reloading it", wanted.label, error)
                try:
                    self._devices.bring_back(set(placement.values()))
                    return self._load_once(wanted, placement)
                except DeviceFailed:
                    raise
                except DeviceLost as e:
                    if e.culprit == wanted.label:
                        raise LoadError(
                            f"loading the model ends its device process: {e}"
                        ) from e
                    error = e
                if time.monotonic() > wanted.until:
                    break
        raise error

    def _load_once(
        self, wanted: _Wanted, placement: Mapping[int, Device]
    ) -> LoadedModel:
        source, config = wanted.source, wanted.config
        files = compiled_files(source, config, self._cache)
        model = open_model(files, config.executable or None)
        options = runner_config(
            config,
            model,
            placement,
            self._largest_body,
            self._limits,
            optional_outputs(source),
        )
        runner = ModelRunner(model, options, name=wanted.label)
        return self._ready(wanted, files, runner)

    def _load_python(self, wanted: _Wanted) -> LoadedModel:
        """Load a Python model on its own processes, which end with its runner.

        If a process dies during the load, there is no second attempt, because no other
        model can have been at fault.
        """
        source, config, label = wanted.source, wanted.config, wanted.label
        if config.models and self._on_calls is None:
            raise ValueError(NO_PLUGIN)
        options = process_options(label, source, config)
        devices = self._devices.start_python(options, config.instances)
        try:
            find = partial(_request_of, devices)
            on_calls = self._on_calls and partial(self._on_calls, wanted.name, find)
            seconds = self._limits.load
            model = read_model(label, source, config, devices[0], seconds, on_calls)
            placement = dict(enumerate(devices))
            runner_options = runner_config(
                config, model.interface, placement, self._largest_body, self._limits
            )
            runner = ModelRunner(model, runner_options, name=label)
        except BaseException:
            for device in devices:
                device.close()
            raise
        return self._ready(wanted, list(source.files), runner)

    def _ready(
        self, wanted: _Wanted, files: list[Path], runner: ModelRunner
    ) -> LoadedModel:
        """Describe and warm up a loaded model; close it if that fails."""
        source, config = wanted.source, wanted.config
        try:
            with runner.health.warming_up():
                defaults = input_defaults(source, config, self._cache)
                memory = self._memory(files, config)
                made = assemble(
                    wanted.name, source, config, runner.interface, runner, defaults
                )
                for note in made.notes:
                    logger.warning("model %s: %s", wanted.label, note)
                example = config.example or _example_of(runner)
                tried = _tried(example, made, runner, wanted)
                fill = _warm_up(made.spec, runner, wanted, quiet=tried is True)
                routes = ModelRoutes.parse(runner.interface.routes)
                self._claim(wanted.name, routes.routes)
        except BaseException:
            runner.close()
            raise
        return LoadedModel(
            made.visible,
            runner,
            config,
            source,
            memory,
            time.time(),
            fill > 0,
            made.scheduler,
            fill or 1,
            example if tried is not False else {},
            routes,
        )

    def prepare(self, source: VersionSource, config: ModelConfig) -> None:
        """Compile if needed, which may take long. Raises `LoadError`."""
        with explained(str(source.version)):
            compiled_files(source, config, self._cache)

    def is_prepared(self, source: VersionSource, config: ModelConfig) -> bool:
        """Return whether `prepare` has nothing to do, or cannot help."""
        if not source.is_onnx or source.problem:
            return True
        with explained(str(source.version)):
            changes = graph_changes(source, config)
            return self._cache.find(source.files[0], changes) is not None

    def memory_of(self, source: VersionSource, config: ModelConfig) -> int:
        """Return the approximate size of a version in bytes. Compile it if needed.

        Raises `LoadError`.
        """
        with explained(str(source.version)):
            return self._memory(compiled_files(source, config, self._cache), config)

    def _memory(self, files: list[Path], config: ModelConfig) -> int:
        if config.memory is not None:
            return config.memory
        if config.memory_limit is not None:
            return config.instances * config.memory_limit
        devices = self._devices.count_for(config.instances, config.devices)
        return devices * sum(path.stat().st_size for path in files)


def compiled_files(
    source: VersionSource, config: ModelConfig, cache: CompileCache
) -> list[Path]:
    """Return the PopEF files of a version; compile if needed."""
    if source.problem:
        raise LoadError(source.problem)
    changes = graph_changes(source, config)
    if source.is_onnx:
        return [cache.popef_for(source.files[0], changes)]
    if changes.reshapes:
        raise LoadError(f"{source.declared.label}: reshape needs an .onnx file")
    return list(source.files)


def input_defaults(
    source: VersionSource, config: ModelConfig, cache: CompileCache
) -> dict[str, Array | None]:
    """Return the defaults of inputs that requests may omit. Raises the errors of
    compiling.
    """
    if not source.is_onnx:
        return {}
    return cache.defaults(source.files[0], named_optional_inputs(config))


def _example_of(runner: ModelRunner) -> Mapping[str, Any]:
    """Return the example values in the model's file."""
    metadata = runner.model.metadata
    text = metadata.option("user.popgate.example", "") or metadata.option(
        "onnx.popgate.example", ""
    )
    with suppress(orjson.JSONDecodeError):
        found = orjson.loads(text or "{}")
        if isinstance(found, dict):
            return found
    return {}


def _tried(
    example: Mapping[str, Any], made: Assembled, runner: ModelRunner, wanted: _Wanted
) -> bool | None:
    """Return whether the model answers its example; None if it was not run."""
    warmup = wanted.config.warmup
    if not example or (warmup is not None and not warmup.enabled):
        return None
    if runner.interface.keeps_state:
        return None  # a run would change its state
    try:
        run_example(made.spec, made.visible, runner, example, wanted.until)
    except WarmupFailed as e:
        if runner.failure is not None or e.is_late:
            raise
        msg = "model %s: the documentation does not show its example: %s"
        logger.warning(msg, wanted.label, e)
        return False
    return True


def _request_of(devices: Iterable[Device], number: int) -> Any:
    found = (device.channels.request_of(number) for device in devices)
    return next(filter(None, found), None)


def _warm_up(
    spec: ModelSpec, runner: ModelRunner, wanted: _Wanted, *, quiet: bool
) -> int:
    """Warm up a model and return the size of its free dimensions, 0 without a run.

    `quiet` is true if other values have shown that the model runs. Raises
    `WarmupFailed` if a run fails that should succeed.
    """
    config, replaces = wanted.config, wanted.replaces
    if config.warmup is None and runner.interface.keeps_state:
        return 0  # runs would change its state
    try:
        sizes, folder = config.preferred_batch_sizes, wanted.source.folder
        return warm_up(spec, runner, config.warmup, folder, sizes, wanted.until)
    except WarmupFailed as e:
        if runner.failure is not None or e.is_late:
            raise  # whatever the values: its runs would delay others
        if config.warmup is not None or (replaces is not None and replaces.warmed):
            raise
        logger.log(
            logging.DEBUG if quiet else logging.WARNING,
            "model %s: %s; write a [warmup] section with suitable values, or one with "
            "enabled = false",
            wanted.label,
            e,
        )
        return 0
