"""Sources of a model: files, or content read from them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import engine
import popef_io
from popef import Model
from popef.errors import WrongType
from popef.taking import Path, got, path_of

FilesOrModel: TypeAlias = Path | Sequence[Path] | Model


class PopefPaths(list[str]):
    """The files of one model. A single path stands for a list with that path."""

    def __init__(self, paths: Path | Iterable[Path] = ()) -> None:
        super().__init__(_listed(paths))


def opened(source: FilesOrModel) -> popef_io.Model:
    """Return the engine's model. Raises `engine.InvalidModel` if it cannot be read."""
    if isinstance(source, Model):
        return source.io
    if not isinstance(source, str | bytes | os.PathLike | Iterable):
        raise WrongType(
            "expected the path of a file, PopefPaths or another list of paths, or a "
            f"popef.Model, {got(source)}"
        )
    paths = _listed(source)
    if not paths:
        raise engine.InvalidModel("expected the paths of files, got none")
    try:
        return engine.open_model(paths)
    except engine.InvalidModel as error:
        cause = error.__cause__
        which = isinstance(cause, popef_io.InvalidValueError) and cause.field
        if which != "executable_name":
            raise
        raise engine.InvalidModel(
            f"{str(error).removeprefix(f'{which}: ')}; "
            "popef.ModelBuilder(reader).createModel(name) makes one of them"
        ) from cause


def _listed(paths: Path | Iterable[Path]) -> list[str]:
    if isinstance(paths, str | bytes | os.PathLike):
        return [path_of(paths)]
    if not isinstance(paths, Iterable):
        raise WrongType(f"expected paths of files, {got(paths)}")
    return [path_of(path) for path in paths]
