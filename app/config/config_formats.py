"""Configuration formats: files of other servers that plugins translate.

The name of the entry point is the name of the file, as in ``config.pbtxt``. So the
plugin is imported only when a model's folder has such a file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from app.config.config_keys import ModelConfigError
from app.config.declared import DeclaredTensors
from app.plugins import CONFIG_FORMATS, plugin, plugin_names

#: The longest configuration, in bytes: a page of options; limits the cost of a stray
#: file.
MAX_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Translation:
    """A translated configuration: `options` are keys of a ``config.toml``.

    `declared` must be compared with the model. `filename` is the file to use if a
    version has several.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    declared: DeclaredTensors = field(default_factory=DeclaredTensors)
    filename: str = ""
    notes: tuple[str, ...] = ()


class ConfigFormat(Protocol):
    """An object of the entry point group `popgate.config_formats`. For all threads."""

    def read(self, path: Path, name: str) -> Translation:
        """Return the translated configuration of the model `name`.

        Raises `ModelConfigError`, which names file and field.
        """

    def requested(
        self, document: Mapping[str, Any], name: str, label: str
    ) -> Translation:
        """Return the translated configuration of a load request, which changes another.

        `document` has keys of this format and of ``config.toml``; the latter are
        options as they are. `label` is its name in errors. Raises `ModelConfigError`.
        """


def config_files() -> Collection[str]:
    """Return the names of the files that plugins can translate."""
    return plugin_names(CONFIG_FORMATS)


def read_translated(path: Path, name: str) -> Translation:
    """Return the translated configuration of the model `name`.

    Raises `ModelConfigError`.
    """
    reader: ConfigFormat | None = plugin(CONFIG_FORMATS, path.name)
    if reader is None:
        msg = (
            f"{path.name}: the plugin for this file cannot be imported; the server's "
            "log has the reason"
        )
        raise ModelConfigError(msg)
    return reader.read(path, name)


def translate_request(text: str, name: str, label: str) -> Translation:
    """Return the translated configuration of a load request, which is JSON.

    The first format, by the name of its file, may have keys in it. Raises
    `ModelConfigError`.
    """
    document = _parse(text)
    for file in config_files():
        reader: ConfigFormat | None = plugin(CONFIG_FORMATS, file)
        if reader is not None:
            return reader.requested(document, name, label)
    return Translation(document)


def _parse(text: str) -> dict[str, Any]:
    if len(text) > MAX_CONFIG_BYTES:
        msg = f"the config is larger than {MAX_CONFIG_BYTES} characters"
        raise ModelConfigError(msg)
    try:
        document = json.loads(text)
        json.dumps(document, ensure_ascii=False).encode()  # refuses lone surrogates
    except (ValueError, RecursionError) as e:
        raise ModelConfigError(f"the config is not JSON: {e}") from None
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise ModelConfigError(f"the config must be a JSON object, got {kind}")
    return document
