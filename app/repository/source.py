"""`ScannedModel`: a model as a scan finds it, before anything is loaded (scan.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from app.config.declared import DeclaredTensors
from app.config.file_stamps import Stamp
from app.config.model_config import ModelConfig
from app.repository.model_sources import RemoteUrl

WARMUP_FOLDER = "warmup"
PYTHON_MODEL = "model.py"

# The name is one path segment of a URL, without characters that a shell, a URL or a
# label must quote.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+-]{0,199}")


@dataclass(frozen=True, slots=True)
class VersionSource:
    """The files of one version. `problem` says why it cannot be loaded, or is empty.

    `stamp` differs when a file of the version was replaced, added or removed.
    """

    version: int
    files: tuple[Path, ...] = ()
    problem: str = ""
    stamp: Stamp = ()
    declared: DeclaredTensors = field(default_factory=DeclaredTensors)
    """Declarations that its tensors must match."""
    folder: Path | None = None
    """The model's folder with its other files; None for a single file."""

    format: str = ""
    """The plugin that recognised the folder (`app.repository.formats`)."""

    @property
    def is_onnx(self) -> bool:
        return bool(self.files) and self.files[0].suffix == ".onnx"

    @property
    def is_python(self) -> bool:
        """Return whether the model is code (`app.repository.python_models`)."""
        return bool(self.files) and self.files[0].suffix == ".py"


@dataclass(frozen=True, slots=True)
class ScannedModel:
    """A model in the repository: its versions, ascending, and options.

    `stamp` differs when any part of the model has changed. `notes` names configuration
    without effect, and the reason. `url` is the source of its files.
    """

    name: str
    versions: tuple[VersionSource, ...] = ()
    config: ModelConfig = field(default_factory=ModelConfig)
    problem: str = ""
    stamp: Stamp = ()
    notes: tuple[str, ...] = ()
    url: RemoteUrl | None = None


def is_model_name(name: str) -> bool:
    """Return whether a name is valid for a model: letters, digits, ``_ . , + -``, up to
    200.
    """
    return _NAME.fullmatch(name) is not None
