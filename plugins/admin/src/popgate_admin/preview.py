"""Preview of a repository: its models and problems, found without a device.

The preview takes the same steps as loading, up to the device. It finds files, reads
options, compiles ONNX files (and keeps them for the server), and compares their tensors
with the declarations. It runs warm-ups in a process of its own. For a thread; blocks.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.config.config_formats import config_files
from app.config.model_config import ModelConfig
from app.repository.assembly import (
    Assembled,
    assemble,
    format_options,
    named_optional_inputs,
    runner_config,
)
from app.repository.compilers import CompileCache
from app.repository.formats import format_named
from app.repository.load_errors import LoadError, explained
from app.repository.loader import compiled_files, input_defaults
from app.repository.model_sources import RemoteCaches, RemoteError
from app.repository.places import ModelPlaces
from app.repository.python_models import check_kind, process_options, read_model
from app.repository.scan import CONFIG_NAME, SUFFIXES, is_folder, is_version, names_in
from app.repository.source import (
    PYTHON_MODEL,
    WARMUP_FOLDER,
    ScannedModel,
    VersionSource,
)
from app.repository.warmup import warm_up
from app.serving.ensemble import label_of, why_no_member
from app.serving.ensemble_kind import ensemble_kind
from app.serving.runner import Submitted
from app.sizes import counted, size_text
from app.spec import ModelSpec
from engine import (
    Array,
    DeviceManager,
    ModelRunner,
    RunnerClosed,
    describe_model,
    open_model,
)
from popef_io import Model, Reader


@dataclass(frozen=True, slots=True)
class VersionPreview:
    """One version that would be served; `spec` is None if it would not.

    `no_member` says why it cannot be a step of an ensemble; empty if it can be one.
    """

    version: int
    files: tuple[str, ...] = ()
    spec: ModelSpec | None = None
    memory: int = 0
    problem: str = ""
    notes: tuple[str, ...] = ()
    no_member: str = ""


@dataclass(frozen=True, slots=True)
class ModelPreview:
    """One model. Problems and notes begin with the file or folder they are about.

    If `to_come` is true, its files are remote and the cache has none of them.
    """

    name: str
    config: ModelConfig = field(default_factory=ModelConfig)
    versions: tuple[VersionPreview, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    to_come: bool = False

    @property
    def is_served(self) -> bool:
        return self.to_come or any(v.spec is not None for v in self.versions)

    @property
    def memory(self) -> int:
        """Return the approximate size of all its versions in bytes."""
        return sum(v.memory for v in self.versions)


@dataclass(frozen=True, slots=True)
class RepositoryPreview:
    """A repository; `problems` are those of the folder itself."""

    models: tuple[ModelPreview, ...]
    problems: tuple[str, ...] = ()

    @property
    def all_problems(self) -> list[str]:
        return [*self.problems, *(p for m in self.models for p in m.problems)]

    @property
    def is_good(self) -> bool:
        return not self.all_problems


def preview_repository(
    root: Path,
    cache: CompileCache,
    remote: RemoteCaches,
    *,
    devices: int = 1,
    allow_python: bool = False,
) -> RepositoryPreview:
    """Preview a folder as served with `devices` devices. Raises OSError.

    `remote` has the cache of remote models; nothing is downloaded into it.
    """
    return _Previewer(root, cache, remote, devices, allow_python).repository()


class _NotKnown(LoadError):
    """The model is unknown until a part of it has been downloaded."""


class _NoRunner:
    """Replaces a `Runner` if no model runs. It is no subclass, because `Runner` is
    compiled.
    """

    devices = ()

    def submit(self, *arguments: object, **options: object) -> Submitted:
        raise RunnerClosed("this command runs no model")


class _Previewer:
    def __init__(
        self,
        root: Path,
        cache: CompileCache,
        remote: RemoteCaches,
        devices: int,
        allow_python: bool,
    ) -> None:
        self._allow_python = allow_python
        self._root = root
        self._remote = remote
        self._places = ModelPlaces(root, {}, remote)
        self._cache = cache
        self._devices = devices
        self._models: dict[str, ModelPreview] = {}
        self._begun: list[str] = []

    def repository(self) -> RepositoryPreview:
        good, bad = names_in(self._root)
        options = [n for n in _config_files() if (self._root / n).is_file()]
        if options or (good and all(map(is_version, good))):
            problem = (
                f"{self._root.name} is the folder of one model; name its parent folder"
            )
            return RepositoryPreview((), (problem,))
        for name in good:
            self._model(name)
        problems = [
            f"{name!r}: invalid model name (letters, digits and '_.,+-')"
            for name in bad
        ]
        models = tuple(self._models[name] for name in good)
        return RepositoryPreview(models, tuple(problems))

    def _model(self, name: str) -> ModelPreview | None:
        """Return the model with that name; None if there is none."""
        if name in self._models:
            return self._models[name]
        scanned = self._places.scan(name)
        if scanned is None:
            return None
        self._begun.append(name)
        found = self._preview(scanned)
        self._begun.pop()
        self._models[name] = found
        return found

    def _preview(self, scanned: ScannedModel) -> ModelPreview:
        name = scanned.name
        notes = [f"{name}/{note}" for note in scanned.notes]
        if not any(version.format for version in scanned.versions):
            notes += _odd_entries(self._root / name)
        preview = ModelPreview(name, scanned.config, notes=tuple(notes))
        if scanned.url is not None:
            problem = self._elsewhere(scanned, notes)
            preview = replace(preview, notes=tuple(notes))
            if self._remote.of(scanned.url).folder_of(scanned.url) is None:
                if problem:
                    return replace(preview, problems=(problem,))
                return replace(preview, to_come=True)
            notes += [f"{name}/{CONFIG_NAME}: {problem}"] if problem else []
        if scanned.problem:
            return replace(preview, problems=(_placed(name, scanned.problem),))
        versions = [self._version(name, v, scanned.config) for v in scanned.versions]
        problems = [
            _placed(name, v.problem, f"{name}/{v.version}")
            for v in versions
            if v.problem
        ]
        missing = [i for i in scanned.config.devices if i >= self._devices]
        if missing:
            versions = [replace(version, spec=None) for version in versions]
            problems.append(
                f"{name}/{CONFIG_NAME}: devices = {list(scanned.config.devices)} needs "
                f"{counted(max(missing) + 1, 'device')}, but {self._devices} would be "
                f"attached (--devices cpu:{max(missing) + 1})"
            )
        asked, there = scanned.config.versions, {v.version for v in versions}
        absent = sorted(set(asked.specific) - there)
        if absent:
            numbers = ", ".join(map(str, absent))
            notes.append(f"{name}: versions = {asked}, but the folder lacks {numbers}")
        notes += [f"{name}/{v.version}: {note}" for v in versions for note in v.notes]
        return replace(
            preview,
            versions=tuple(versions),
            problems=tuple(problems),
            notes=tuple(notes),
        )

    def _elsewhere(self, scanned: ScannedModel, notes: list[str]) -> str:
        """Return the problem with a remote model's URL, or an empty string. Add notes
        on the files that it would download.
        """
        assert scanned.url is not None
        try:
            listing, cached = self._remote.of(scanned.url).preview(scanned.url)
        except RemoteError as e:
            why = str(e) if str(scanned.url) in str(e) else f"{scanned.url}: {e}"
            return f"{scanned.name}/{CONFIG_NAME}: source: {why}"
        coming = [file for file in listing.files if file.name not in cached]
        size = size_text(sum(file.size or 0 for file in coming))
        what = (
            f"{counted(len(coming), 'file')}, {size}, would come"
            if coming
            else ("all files are in the cache")
        )
        notes.append(f"{scanned.name}/{CONFIG_NAME}: {scanned.url}: {what}")
        return ""

    def _version(
        self, name: str, source: VersionSource, config: ModelConfig
    ) -> VersionPreview:
        preview = VersionPreview(source.version, tuple(p.name for p in source.files))
        try:
            if config.ensemble is not None:
                with explained(f"{name}/{source.version}"):
                    return replace(preview, spec=self._ensemble(name, source, config))
            with explained(f"{name}/{source.version}"):
                made, memory = self._loadable(name, source, config)
                notes = (*made.notes, *_needed(made.visible, config))
                if source.format:
                    options = format_options(source, config)
                    kind = format_named(source.format)
                    notes += tuple(kind.notes(source.files, options))
                if source.is_python:
                    notes += (
                        (f"{PYTHON_MODEL} is code that runs with the server's rights"),
                    )
        except _NotKnown as e:
            return replace(preview, notes=(str(e),))
        except LoadError as e:
            text = str(e).replace(f"{self._root.resolve()}/", "")
            return replace(preview, problem=text)
        return replace(
            preview,
            spec=made.visible,
            memory=memory,
            notes=notes,
            no_member=why_no_member(made.scheduler),
        )

    def _loadable(
        self, name: str, source: VersionSource, config: ModelConfig
    ) -> tuple[Assembled, int]:
        """Return the version and its tensors. May raise any exception."""
        if source.problem:
            raise LoadError(source.problem)
        check_kind(source, config, allowed=self._allow_python)
        if source.is_python:
            return _python(name, source, config), _python_memory(source, config)
        files = compiled_files(source, config, self._cache)
        defaults = input_defaults(source, config, self._cache)
        model = open_model(files, config.executable or None)
        _verify(files)
        if config.warmup is not None and config.warmup.enabled:
            made = _warmed_up(name, source, config, model, defaults)
        else:
            described = describe_model(model, runner_config(config, model, {}))
            made = assemble(name, source, config, described, _NoRunner(), defaults)
        memory = config.memory
        if memory is None:
            used = min(config.instances, len(config.devices) or self._devices)
            memory = used * sum(path.stat().st_size for path in files)
        return made, memory

    def _ensemble(
        self, name: str, source: VersionSource, config: ModelConfig
    ) -> ModelSpec:
        """Return the spec of an ensemble. Raises `LoadError`."""
        assert config.ensemble is not None
        specs = []
        for number, step in enumerate(config.ensemble.step):
            if step.model in self._begun:
                raise LoadError(
                    f"{label_of(number, step.model)}: the ensemble would run itself"
                )
            member = self._model(step.model)
            if member is not None and member.to_come:
                msg = f"{step.model!r} is not downloaded yet, so it is not checked"
                raise _NotKnown(f"{label_of(number, step.model)}: {msg}")
            there = [v for v in member.versions if v.spec] if member else []
            wanted = [v for v in there if step.version in (0, v.version)]
            if not wanted:
                which = f" version {step.version}" if step.version else ""
                raise LoadError(
                    f"{label_of(number, step.model)}: model {step.model!r}{which} "
                    "would not be served"
                )
            spec = wanted[-1].spec
            assert spec is not None
            specs.append(spec)
            if reason := wanted[-1].no_member:
                raise LoadError(f"{label_of(number, step.model)}: {reason}")
        with explained(f"{name}/{source.version}"):
            return ensemble_kind().spec(
                name, str(source.version), config, specs, source.declared
            )


def _python(name: str, source: VersionSource, config: ModelConfig) -> Assembled:
    """Preview a Python model in a process of its own.

    The process imports the model, and runs it if a warm-up asks for it. Raises
    anything.
    """
    label = f"{name}/{source.version}"
    options = process_options(label, source, config)
    with DeviceManager("cpu:1").create_python_device(options) as device:
        model = read_model(label, source, config, device, 0)
        alone = replace(config, instances=1)
        if config.warmup is None or not config.warmup.enabled:
            described = describe_model(
                model.interface, runner_config(alone, model.interface, {})
            )
            return assemble(name, source, config, described, _NoRunner(), {})
        settings = runner_config(alone, model.interface, {0: device})
        with ModelRunner(model, settings, name=label) as runner:
            made = assemble(name, source, config, runner.interface, runner, {})
            sizes = config.preferred_batch_sizes
            warm_up(made.spec, runner, config.warmup, source.folder, sizes)
            return made


def _python_memory(source: VersionSource, config: ModelConfig) -> int:
    if config.memory is not None:
        return config.memory
    each = config.memory_limit or sum(path.stat().st_size for path in source.files)
    return config.instances * each


def _warmed_up(
    name: str,
    source: VersionSource,
    config: ModelConfig,
    model: Model,
    defaults: Mapping[str, Array | None],
) -> Assembled:
    """Return the version after its warm-up.

    Only a run shows whether the model runs. The run has its own process, which takes no
    device from other processes. Raises anything.
    """
    device = DeviceManager("cpu:1").create_ipu_model_device(model)
    try:
        alone = replace(config, instances=1, devices=())
        options = runner_config(alone, model, {0: device})
        with ModelRunner(model, options, name=f"{name}/{source.version}") as runner:
            made = assemble(name, source, config, runner.interface, runner, defaults)
            sizes = config.preferred_batch_sizes
            warm_up(made.spec, runner, config.warmup, source.folder, sizes)
            return made
    finally:
        device.close()


def _needed(spec: ModelSpec, config: ModelConfig) -> Iterator[str]:
    """Note inputs that are declared optional but cannot be omitted."""
    if spec.optional_inputs:
        return
    for name in named_optional_inputs(config):
        if name in spec.inputs_by_name and name not in spec.defaults:
            yield (
                f"{name!r} is declared optional, but the model needs it and has no "
                "default (an initializer of that name): requests must contain it"
            )


def _verify(files: Sequence[Path]) -> None:
    """Read everything that loading reads only when it is used. Raises `PopefError`."""
    with Reader(detached=True) as reader:
        for file in files:
            reader.parse_file(file)
        reader.verify()


def _placed(name: str, text: str, place: str = "") -> str:
    """Return a problem, preceded by the name of the file to change."""
    for file in _config_files():
        if text.startswith(file):
            return f"{name}/{text}"
    return text if text.startswith(f"{name}/") else f"{place or name}: {text}"


def _config_files() -> list[str]:
    """Return the names of the files with options in a model's folder."""
    return [CONFIG_NAME, *config_files()]


def _odd_entries(folder: Path) -> Iterator[str]:
    """Yield notes on files in a model's folder that were probably meant for PopGate."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:  # missing, or reported elsewhere
        return
    beside = (folder.with_name(folder.name + suffix) for suffix in SUFFIXES)
    is_elsewhere = any(is_version(e.name) for e in entries) or any(
        p.is_file() for p in beside
    )
    for entry in entries:
        name = entry.name
        if is_folder(entry):
            if any(c.isdigit() for c in name) and not is_version(name):
                yield (
                    f"{folder.name}/{name}: not served, because a version folder is "
                    "named by a whole number from 1"
                )
            elif name != WARMUP_FOLDER and difflib.get_close_matches(
                name, [WARMUP_FOLDER], cutoff=0.8
            ):
                yield (
                    f"{folder.name}/{name}: not read; the folder is called "
                    f"{WARMUP_FOLDER}"
                )
        elif name not in _config_files():
            if name.lower().startswith("config") or difflib.get_close_matches(
                name, _config_files(), cutoff=0.8
            ):
                yield (
                    f"{folder.name}/{name}: not read; the file is called {CONFIG_NAME}"
                )
            elif entry.suffix in (".onnx", ".popef") and is_elsewhere:
                yield (
                    f"{folder.name}/{name}: not served; move it into a version "
                    f"folder, {folder.name}/1/{name}"
                )
