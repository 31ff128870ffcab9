"""Scan of a model repository folder, before anything is loaded.

    models/<name>/<version>/*.popef     one model, in one file or several
    models/<name>/<version>/*.onnx      one file, compiled when it is loaded
    models/<name>/<version>/model.py    a model in Python, with the files beside it
    models/<name>.popef, <name>.onnx    one file, served as version 1
    models/<name>/*.popef, *.onnx       the same, without a version folder
    models/<name>/config.toml           optional, for each of these
    models/<name>/config.pbtxt          optional, of another server (a plugin reads it)
    models/<name>/config.toml           alone, that of an ensemble of other models, or
                                        of one whose files come from a URL (`source`)

A model is found by listing the folder and comparing names. So a name from a request
never becomes part of a path. A symbolic link to a place outside the folder is not
served.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from app.config.config_formats import config_files
from app.config.config_keys import ModelConfigError
from app.config.file_stamps import Stamp, stamp_of
from app.config.model_config import ModelConfig
from app.config.model_files import INITIAL_STATE_FOLDER
from app.config.model_options import REPOSITORY, ModelOptions, Origin, read_options
from app.repository.formats import recognise
from app.repository.model_sources import parse_url
from app.repository.source import (
    PYTHON_MODEL,
    WARMUP_FOLDER,
    ScannedModel,
    VersionSource,
    is_model_name,
)
from engine import InvalidConfig

logger = logging.getLogger(__name__)

CONFIG_NAME = "config.toml"
USUAL_MODEL = "model.onnx"  # the choice among several
SUFFIXES = (".popef", ".onnx")
SINGLE_FILE_VERSION = 1
MAX_FILES = 10_000  # in one folder of a model
MAX_PROBLEM = 2000  # characters of a model's problem

_VERSION = re.compile(r"[1-9][0-9]{0,17}")


class ScanError(Exception):
    """A model in the repository that cannot be served; the message names
    the problem.
    """


def is_version(name: str) -> bool:
    """Return whether a folder of a model is a version of it: a whole number from 1."""
    return _VERSION.fullmatch(name) is not None


def scan_names(root: Path) -> list[str]:
    """Return the names of the models in the folder, sorted. Raises OSError."""
    good, bad = names_in(root)
    for name in bad:
        _tell_skipped(root, name)
    return good


@lru_cache(maxsize=4096)
def _tell_skipped(root: Path, name: str) -> None:
    """Log skipped files once, not each time the folder is read."""
    logger.warning(
        "ignoring %r: a model's name has letters, digits and any of '_.,+-', and does "
        "not begin with one of the last four",
        name,
    )


def names_in(root: Path) -> tuple[list[str], list[str]]:
    """Return the names of the models, and the invalid names, sorted. Raises OSError."""
    names = {_name_of(entry) for entry in root.iterdir()} - {None}
    found = sorted(name for name in names if name is not None)
    good = [name for name in found if is_model_name(name)]
    return good, [name for name in found if not is_model_name(name)]


def scan_model(
    root: Path, name: str, override: str | None = None, *, origin: Origin = REPOSITORY
) -> ScannedModel | None:
    """Return the model with that name in its present state; None if it does not exist.

    `override` is a configuration in JSON that overrides all others. Errors of the model
    go to `problem`, so one model never hides others. Raises OSError if the folder
    cannot be listed.
    """
    if not is_model_name(name):
        return None
    # The names are compared first. Checking hundreds of files for each of hundreds of
    # models would take most of the start.
    may_be = {name, *(f"{name}{suffix}" for suffix in SUFFIXES)}
    listed = (root / found for found in os.listdir(root) if found in may_be)
    entries = [entry for entry in listed if _name_of(entry) == name]
    if not entries:
        return None
    return _scan_entries(root.resolve(), name, sorted(entries), override, origin)


def scan_named(
    path: Path, name: str, override: str | None = None, *, origin: Origin = REPOSITORY
) -> ScannedModel | None:
    """Return the model in a file or folder named on the command line; None if it does
    not exist.

    Works like `scan_model`, but the folder needs no folders for versions.
    """
    try:
        place = path.resolve(strict=True)
    except OSError:
        return None
    return _scan_entries(place.parent, name, [place], override, origin)


def _scan_entries(
    root: Path, name: str, entries: list[Path], override: str | None, origin: Origin
) -> ScannedModel:
    """Return the model that these entries of the folder `root` make."""
    stamp: Stamp = ()
    try:
        stamp = _stamp_of(root, entries)
        read = partial(read_options, override=override, origin=origin)
        found = _read_model(root, name, entries, read, origin)
        if not origin.is_trusted and any(v.is_python for v in found.versions):
            raise ScanError(
                f"{PYTHON_MODEL}: PopGate never takes code from {origin.name}"
            )
        return replace(found, stamp=stamp)
    except (ScanError, ModelConfigError) as e:
        problem = str(e)
    except OSError as e:
        problem = f"cannot be read: {e}"
    except Exception as e:
        logger.exception("model %s: unexpected", name)
        problem = f"cannot be read: {type(e).__name__}: {e}; this is a bug"
    if len(problem) > MAX_PROBLEM:
        problem = f"{problem[:MAX_PROBLEM]}..."
    return ScannedModel(name, problem=problem, stamp=stamp)


def _stamp_of(root: Path, entries: Iterable[Path]) -> Stamp:
    """Return the stamp of a model: of its files, its folder, and its versions."""
    paths: list[Path] = []
    for entry in entries:
        paths.append(entry)
        if not _is_inside(root, entry) or not is_folder(entry):
            continue
        for inner in _listed(entry):
            paths.append(inner)
            read = is_version(inner.name) or inner.name in (
                WARMUP_FOLDER,
                INITIAL_STATE_FOLDER,
            )
            if read and is_folder(inner):
                paths += _listed(inner) if _is_inside(root, inner) else ()
    return stamp_of(paths)


def _listed(folder: Path) -> list[Path]:
    """Return the files in a folder; hidden files are ignored."""
    found = [p for p in folder.iterdir() if not _is_passed_over(p.name)]
    if len(found) > MAX_FILES:
        raise ScanError(f"the folder {folder.name} holds more than {MAX_FILES} files")
    return sorted(found)


def _is_passed_over(name: str) -> bool:
    """Return whether the entry was not put there to be served."""
    return name.startswith(".") or name == "__pycache__"


def _is_inside(root: Path, path: Path) -> bool:
    return _resolved(path).is_relative_to(root)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError:  # older Pythons raise this for circular links
        raise ScanError(
            f"{path.name} is a link whose target leads back to it"
        ) from None


def is_folder(path: Path) -> bool:
    """Return whether a file is visible as a regular file: a link may lead to an
    unreadable place.
    """
    try:
        return path.is_dir()
    except OSError:
        return False


def _name_of(entry: Path) -> str | None:
    """Return the model that an entry of the repository belongs to."""
    if _is_passed_over(entry.name):
        return None
    if entry.suffix in SUFFIXES and not is_folder(entry):
        return entry.stem
    return entry.name if is_folder(entry) else None


def _read_model(
    root: Path,
    name: str,
    entries: list[Path],
    read: Callable[..., ModelOptions],
    origin: Origin,
) -> ScannedModel:
    folders = [e for e in entries if _inside(root, e).is_dir()]
    files = [_inside(root, e) for e in entries if e not in folders]
    folder = folders[0] if folders else None
    foreign = filter(None, (_option_file(root, folder, n) for n in config_files()))
    toml = _option_file(root, folder, CONFIG_NAME)
    options = read(name, folder, next(foreign, None), toml)
    if options.config.source and not origin.name:
        return _read_source(name, entries, options)
    versions: list[VersionSource] = []
    if folder is not None:
        versions += _read_versions(root, folder, options)
    if len(files) > 1 or (files and versions):
        found = ", ".join(e.name + "/" * e.is_dir() for e in entries)
        raise ScanError(f"several models have this name: {found}; keep one")
    if files:
        stamp = stamp_of(files)
        versions = [VersionSource(SINGLE_FILE_VERSION, tuple(files), stamp=stamp)]
    if options.config.ensemble is not None:
        if files:
            msg = (
                "config.toml makes the model an ensemble, but its folder also "
                f"contains {files[0].name}; remove one"
            )
            raise ScanError(msg)
        versions = versions or [VersionSource(SINGLE_FILE_VERSION)]
    if not versions and folder is not None:
        versions = _read_unversioned(root, folder, options)
    if not versions:
        msg = (
            "the folder contains neither a version folder nor a model; move the model "
            f"into {name}/1/, or beside it as {name}.popef"
        )
        raise ScanError(msg)
    return ScannedModel(
        name,
        tuple(
            replace(v, declared=options.declared, folder=folder)
            for v in _selected(versions, options.config)
        ),
        options.config,
        notes=options.notes,
    )


def _read_source(name: str, entries: list[Path], options: ModelOptions) -> ScannedModel:
    """Return a model with remote files, which may have no files here."""
    beside = [e.name for e in entries if not is_folder(e)]
    for folder in filter(is_folder, entries):
        beside += [
            e.name
            for e in _listed(folder)
            if is_version(e.name)
            or e.suffix in SUFFIXES
            or e.name in (*config_files(), PYTHON_MODEL, WARMUP_FOLDER)
        ]
    if beside:
        msg = (
            f"{CONFIG_NAME}: the files come from source = {options.config.source!r}, "
            f"but the folder also contains {beside[0]}; keep one"
        )
        raise ScanError(msg)
    try:
        url = parse_url(options.config.source)
    except InvalidConfig as e:
        raise ScanError(f"{CONFIG_NAME}: source: {e}") from None
    return ScannedModel(name, config=options.config, url=url)


def _selected(
    versions: list[VersionSource], config: ModelConfig
) -> list[VersionSource]:
    """Return the versions that are served, ascending."""
    versions.sort(key=lambda v: v.version)
    wanted = config.versions.select(v.version for v in versions)
    if not wanted:
        have = ", ".join(str(v.version) for v in versions)
        msg = (
            f"versions = {config.versions} in its config, but the folder contains "
            f"{have}"
        )
        raise ScanError(msg)
    return [v for v in versions if v.version in wanted]


def _option_file(root: Path, folder: Path | None, name: str) -> Path | None:
    if folder is None or not (folder / name).exists():
        return None
    return _inside(root, folder / name)


def _read_versions(
    root: Path, folder: Path, options: ModelOptions
) -> Iterator[VersionSource]:
    for entry in folder.iterdir():
        if not is_version(entry.name) or not is_folder(entry):
            continue
        version = int(entry.name)
        if options.config.ensemble is not None:  # an empty folder
            yield VersionSource(version)
            continue
        stamp: Stamp = ()
        try:
            inside = _inside(root, entry)
            stamp = stamp_of(_listed(inside))
            kind, files = _recognised(root, inside, options)
            if kind:
                stamp += stamp_of(files)
            else:
                files = _read_version(root, inside, options.filename)
            yield VersionSource(version, files, stamp=stamp, format=kind)
        except ScanError as e:
            yield VersionSource(version, problem=str(e), stamp=stamp)
        except OSError as e:
            problem = f"version {version} cannot be read: {e.strerror}"
            yield VersionSource(version, problem=problem, stamp=stamp)


def _read_unversioned(
    root: Path, folder: Path, options: ModelOptions
) -> list[VersionSource]:
    """Return the one version of a folder whose files have no version folder."""
    inside = _inside(root, folder)
    kind, files = _recognised(root, inside, options)
    if kind:
        stamp = stamp_of(files)
        return [VersionSource(SINGLE_FILE_VERSION, files, stamp=stamp, format=kind)]
    models = [
        p
        for p in _listed(inside)
        if (p.suffix in SUFFIXES or p.name == PYTHON_MODEL) and p.is_file()
    ]
    if not models:
        return []
    files = _read_version(root, inside, options.filename, "the folder")
    return [VersionSource(SINGLE_FILE_VERSION, files, stamp=stamp_of(models))]


def _recognised(
    root: Path, folder: Path, options: ModelOptions
) -> tuple[str, tuple[Path, ...]]:
    """Return the format of a folder that a plugin knows, and its files."""
    if options.filename or (folder / PYTHON_MODEL).exists():
        return "", ()
    kind, files = recognise(folder, options.config.sections)
    return kind, tuple(_inside(root, path) for path in files)


def _read_version(
    root: Path, folder: Path, filename: str, label: str = ""
) -> tuple[Path, ...]:
    label = label or f"version {folder.name}"
    files = _listed(folder)
    code = [p for p in files if p.name == PYTHON_MODEL]
    if code:
        file = _inside(root, code[0])
        if not file.is_file():  # reading a pipe would block
            raise ScanError(f"{label}: {PYTHON_MODEL} is not a regular file")
        return (file,)  # the files beside it belong to the code
    if filename:
        chosen = [p for p in files if p.name == filename]
        if not chosen:
            msg = f"{label} lacks the file {filename} (default_model_filename)"
            raise ScanError(msg)
        files = chosen
    for suffix in SUFFIXES:
        found = tuple(_inside(root, p) for p in files if p.suffix == suffix)
        if suffix == ".onnx" and len(found) > 1:
            found = tuple(p for p in found if p.name == USUAL_MODEL) or found
        if suffix == ".onnx" and len(found) > 1:
            names = ", ".join(p.name for p in found)
            raise ScanError(f"{label} contains several .onnx files: {names}; keep one")
        if found:
            return found
    msg = f"{label} contains neither a .popef nor an .onnx file, nor a {PYTHON_MODEL}"
    raise ScanError(msg)


def _inside(root: Path, path: Path) -> Path:
    """Return `path` with links followed; raises `ScanError` if that leaves the
    repository.
    """
    resolved = _resolved(path)
    if not resolved.is_relative_to(root):
        msg = f"{path.name} is a link to a place outside the model repository"
        raise ScanError(msg)
    return resolved
