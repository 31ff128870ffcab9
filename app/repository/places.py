"""Where the models that are served lie: in one folder, and at named paths.

popgate serve --model-repository models      what the folder holds
popgate serve model.onnx                     one file, called `model`
popgate serve digits=out/v7.onnx             one file, called `digits`
popgate serve digits/                        a folder with versions, as in models/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from app.config.triton import PBTXT_NAME
from app.repository.scan import (
    CONFIG_NAME,
    SUFFIXES,
    ModelSource,
    is_folder,
    is_model_name,
    is_version,
    scan_model,
    scan_named,
    scan_names,
)
from engine import InvalidConfig


@dataclass(frozen=True, slots=True)
class ModelPlaces:
    """A folder of models, if there is one, and single models by name, which win."""

    folder: Path | None
    named: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path | None, models: Iterable[str]) -> Self:
        """`models` are ``NAME=PATH``, or ``PATH`` alone.

        Raises `engine.InvalidConfig` where something is not there, is no model, or two
        have one name.
        """
        named: dict[str, Path] = {}
        for text in models:
            name, path = _named(text)
            if name in named:
                msg = (
                    f"two models are called {name!r}: {named[name]} and {path}; "
                    f"name one of them, as in --model other={path}"
                )
                raise InvalidConfig(msg)
            named[name] = path
        return cls(folder, named)

    def names(self) -> list[str]:
        """The names of all models, sorted. Raises OSError."""
        found = scan_names(self.folder) if self.folder is not None else []
        return sorted({*found, *self.named})

    def scan(self, name: str, override: str | None = None) -> ModelSource | None:
        """The model as it lies there now; None if there is none. Raises OSError."""
        if name in self.named:
            return scan_named(self.named[name], name, override)
        return scan_model(self.folder, name, override) if self.folder else None

    def scan_all(self) -> dict[str, ModelSource]:
        """Every model, by name. Raises OSError."""
        found = ((name, self.scan(name)) for name in self.names())
        return {name: source for name, source in found if source is not None}

    def __str__(self) -> str:
        folder = [str(self.folder)] if self.folder is not None else []
        return ", ".join([*folder, *map(str, self.named.values())])


def is_one_model(folder: Path) -> bool:
    """Whether a folder is that of one model, not of several: it has versions, or a
    configuration."""
    return any(
        (is_version(e.name) and is_folder(e)) or e.name in (CONFIG_NAME, PBTXT_NAME)
        for e in folder.iterdir()
    )


def _named(text: str) -> tuple[str, Path]:
    """The name and the place of one model."""
    given, equals, rest = text.partition("=")
    if equals and is_model_name(given):
        name, path = given, Path(rest)
    else:
        name, path = "", Path(text)
    if not path.exists():
        raise InvalidConfig(f"there is no file or folder {path}")
    if not path.is_dir() and path.suffix not in SUFFIXES:
        msg = f"{path} is no model: expected .onnx or .popef, or a folder with one"
        raise InvalidConfig(msg)
    absolute = path.absolute()
    if not name:
        name = absolute.name if path.is_dir() else path.stem
    if not is_model_name(name):
        msg = (
            f"a model cannot be called {name!r} (letters, digits and '_.,+-'); "
            f"name it, as in --model NAME={path}"
        )
        raise InvalidConfig(msg)
    return name, path
