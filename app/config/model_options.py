"""Read a model's options from all of their sources.

The sources are the configuration file of another server, PopGate's ``config.toml`` and
the configuration of a load request. Each overrides the one before; all are optional.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from app.config.config_formats import (
    MAX_CONFIG_BYTES,
    Translation,
    read_translated,
    translate_request,
)
from app.config.config_keys import ModelConfigError
from app.config.declared import DeclaredTensors
from app.config.frozen_inputs import with_frozen_files
from app.config.model_config import ModelConfig, parse_model_config
from app.config.model_files import file_inside, read_text, shown
from app.plugins import with_sections

OVERRIDE = "the config of the load request"
_KEYS = frozenset(item.name for item in fields(ModelConfig))
#: The keys that a load request may set: they say how a model runs, but do not affect
#: the machine. A client that may load models may not therefore write files
#: (`save_outputs`), or take more memory than the operator allows (`memory`).
REQUESTABLE = frozenset(
    {
        "batching", "batching_dim", "channel_memory", "check_package_hash",
        "default_priority", "devices", "ensemble", "example", "executable",
        "frozen_inputs",
        "instances", "labels", "max_batch_size", "max_queue_delay", "max_queue_size",
        "max_request_rows", "max_timeout", "optional_inputs", "preferred_batch_sizes",
        "priority", "priority_levels", "responses", "sequence", "timeout", "versions",
        "warmup",
    }
)  # fmt: skip
#: Bytes of one file of labels: 50,000 names of 20 letters.
MAX_LABEL_BYTES = 1 << 20
#: Limit of a dotted key. No table of PopGate is nested a tenth as deep.
MAX_KEY_PARTS = 64


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a model's files: the operator if `name` is empty.

    If `is_trusted`, the files may set every key that the operator's own files may set.
    `config` is the operator's own ``config.toml``. It contains `source` and overrides
    the options in the model's files.
    """

    name: str = ""
    is_trusted: bool = True
    config: Path | None = None


REPOSITORY = Origin()


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options of a model: how it runs, its declarations, and options without effect.

    `filename` is the file to use if a version has several.
    """

    config: ModelConfig = field(default_factory=ModelConfig)
    declared: DeclaredTensors = field(default_factory=DeclaredTensors)
    filename: str = ""
    notes: tuple[str, ...] = ()


def read_options(
    name: str,
    folder: Path | None,
    foreign: Path | None,
    toml: Path | None,
    override: str | None = None,
    *,
    origin: Origin = REPOSITORY,
) -> ModelOptions:
    """Return the options of model `name`, whose files are in `folder`.

    `foreign` is the configuration file of another server, `override` is JSON.

    Raises `ModelConfigError`, also if options from `origin` set keys that are reserved
    for the operator.
    """
    translated, file = Translation(), ""
    if foreign is not None:
        translated, file = read_translated(foreign, name), foreign.name
    layers: list[tuple[str, Mapping[str, Any]]] = [(file, translated.options)]
    if toml is not None:
        label = f"{toml.name} of {origin.name}" if origin.name else toml.name
        layers.append((label, read_document(toml)))
    theirs = len(layers) if origin.name else 0
    if origin.config is not None:
        layers.append((origin.config.name, read_document(origin.config)))
    changes = Translation()
    if override is not None:
        changes = translate_request(override, name, OVERRIDE)
    layers.append((OVERRIDE, changes.options))
    merged: dict[str, Any] = {}
    for number, (label, layer) in enumerate(layers):
        if label == OVERRIDE or (number < theirs and not origin.is_trusted):
            _check_requestable(label, layer)
        elif number < theirs and "source" in layer:
            raise ModelConfigError(
                f"{label}: a model from a URL cannot set source to another URL"
            )
        parse_model_config(layer, label)
        merged |= layer
    declared = changes.declared.over(translated.declared)
    if "ensemble" in merged:
        if "max_batch_size" in changes.options:
            # The size is the ensemble's. The models of its steps have their own.
            del merged["max_batch_size"]
    elif declared.max_batch_size == 0 and not any(
        "batching" in layer for _, layer in layers[1:]
    ):
        merged["batching"] = False
    together = " and ".join(label for label, layer in layers if layer)
    config = parse_model_config(merged, together)
    if folder is not None and (origin.name or not config.source):
        saves = origin.config and origin.config.parent
        config = with_files(config, folder, together, saves)
    return ModelOptions(
        config,
        declared,
        changes.filename or translated.filename,
        translated.notes + changes.notes,
    )


def _check_requestable(label: str, layer: Mapping[str, Any]) -> None:
    for key in layer:
        is_known = key in _KEYS or key in with_sections()
        if is_known and key not in REQUESTABLE:
            msg = f"{label}: {key} can only be set in the model repository"
            raise ModelConfigError(msg)


# Reading a key takes time proportional to the square of its parts. This pattern
# examines a bounded number of characters from the start of each word, so its time is
# linear.
_KEY_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.){0,99}+"|'[^'\n]{0,99}+')"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY_PART}[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}")


def read_document(path: Path) -> dict[str, Any]:
    """Return the tables of a ``config.toml``, unchecked. Raises `ModelConfigError`."""
    try:
        text = read_text(path, MAX_CONFIG_BYTES)
    except ValueError as e:
        raise ModelConfigError(f"{path.name} {e}") from None
    if _LONG_KEY.search(text):
        raise ModelConfigError(
            f"{path.name} cannot be read: a key has {MAX_KEY_PARTS} parts or more"
        )
    try:
        return tomllib.loads(text)
    except (ValueError, ArithmeticError, RecursionError, MemoryError) as e:
        # The grammar allows more than Python can hold: an impossible date, a number of
        # thousands of digits, deeply nested tables.
        raise ModelConfigError(f"{path.name} cannot be read: {e}") from None


def with_files(
    config: ModelConfig, folder: Path, name: str, saves: Path | None = None
) -> ModelConfig:
    """Return `config` with the content of the files that it names.

    `name` is for errors. `saves` is the base of a relative `save_outputs`, if it
    differs.

    Raises `ModelConfigError`.
    """
    if not (config.labels or config.frozen_inputs or config.save_outputs):
        return config
    try:
        frozen = with_frozen_files(config.frozen_inputs, folder)
        save_outputs = config.save_outputs and save_folder(
            config.save_outputs, saves or folder
        )
        labels = {
            output: read_labels(folder, value) if isinstance(value, str) else value
            for output, value in config.labels.items()
        }
    except (ValueError, OSError) as e:
        raise ModelConfigError(f"{name}: {e}") from None
    return replace(
        config, labels=labels, frozen_inputs=frozen, save_outputs=save_outputs
    )


def read_labels(folder: Path, name: str) -> tuple[str, ...]:
    """Return the lines of a file in the model's folder; empty ones are classes without
    a name.

    Raises ValueError for a file that is missing, outside the folder or too large.
    """
    try:
        text = read_text(file_inside(folder, name), MAX_LABEL_BYTES)
    except ValueError as e:
        raise ValueError(f"labels file {shown(name)} {e}") from None
    return tuple(line.rstrip() for line in text.splitlines())


def save_folder(name: str, folder: Path) -> str:
    """Return the folder relative to the model's folder. Raises ValueError for the
    folder of a version.

    The scan would mistake changing files there for another version.
    """
    try:
        path = (folder / name).resolve()
        path.exists()  # may be missing, but must be a valid folder name
    except (OSError, RuntimeError) as e:
        why = getattr(e, "strerror", None) or "its links form a circle"
        raise ValueError(f"save_outputs {shown(name)}: {why}") from None
    try:
        parts = path.relative_to(folder.resolve()).parts
    except ValueError:
        return str(path)
    if not parts or parts[0].isdecimal():
        msg = (
            f"save_outputs {name!r} is the folder of the model's versions; name another"
        )
        raise ValueError(msg)
    return str(path)
