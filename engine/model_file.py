"""Opening the files of a model; every fault of them becomes an engine error."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from engine.errors import InvalidModel
from popef_io import Model, PopefError, load_model

#: A PopEF file, several files of one model, or what was read from them.
ModelSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Model


def open_model(paths: Sequence[str], executable: str | None = None) -> Model:
    """The model in these files; every fault of them is an InvalidModel."""
    try:
        return load_model(*paths, executable_name=executable)
    except PopefError as error:
        raise InvalidModel(str(error)) from error
    except OSError as error:
        raise InvalidModel(
            f"cannot read {error.filename or paths[0]}: {error.strerror or error}"
        ) from error


def paths_of(model: ModelSource) -> list[str]:
    if isinstance(model, (str, os.PathLike)):
        return [str(Path(model))]
    if isinstance(model, Model):
        return [str(path) for path in model.paths]
    return [str(Path(path)) for path in model]
