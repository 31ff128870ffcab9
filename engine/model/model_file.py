"""Open the files of a model. Every fault of the files becomes an engine error."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.errors import InvalidModel
from engine.transport.messages import MAX_FDS, close_all
from popef_io import (
    InvalidValueError,
    Model,
    ModelBuilder,
    PopefError,
    Reader,
    load_model,
)

#: A PopEF file, several files of one model, or a model that was read from files.
ModelFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Model


def open_model(source: ModelFiles, executable: str | None = None) -> Model:
    """Return the model in these files. Every fault of the files raises InvalidModel.

    No later change to the files can end this process, because only device processes
    read mapped files.
    """
    if isinstance(source, Model):
        return source
    paths = _paths_of(source)
    try:
        return load_model(*paths, executable_name=executable, detached=True)
    except InvalidValueError as error:
        reason = str(error).removeprefix("executable_name: ")
        raise InvalidModel(f"{reason} (option executable)") from error
    except PopefError as error:
        raise InvalidModel(str(error)) from error
    except OSError as error:
        where = error.filename or ", ".join(paths)
        raise InvalidModel(f"cannot read {where}: {error.strerror or error}") from error


@contextlib.contextmanager
def handed_over(model: Model) -> Iterator[tuple[list[str], list[int]]]:
    """Yield names and descriptors of the model's files and streams, for a device
    process.

    The descriptors lead to the bytes that the model was read from, even if the files
    have changed since.
    """
    most = MAX_FDS - 1
    if len(model.sources) > most:
        raise InvalidModel(
            f"a model may have at most {most} files, got {len(model.sources)}"
        )
    fds: list[int] = []
    try:
        for source in model.sources:
            try:
                fds.append(source.open())
            except OSError as error:
                raise _unreadable(source.name, error) from error
        yield list(model.paths), fds
    finally:
        close_all(fds)


def _unreadable(name: str, error: OSError) -> InvalidModel:
    why = error.strerror or str(error)
    if error.errno == errno.EFAULT:  # the file no longer has the mapped bytes
        why = "the file was truncated while it was in use"
    return InvalidModel(f"{name} cannot be read again: {why}")


def receive_model(
    names: Sequence[str], fds: Sequence[int], executable: str | None
) -> Model:
    """Return the model that `handed_over` gave. `fds` stay open."""
    try:
        with Reader() as reader:
            for name, fd in zip(names, fds, strict=False):
                reader.parse_descriptor(fd, name)
            return ModelBuilder(reader).create_model(executable)
    except PopefError as error:
        raise InvalidModel(str(error)) from error


def _paths_of(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> list[str]:
    if isinstance(source, (str, os.PathLike)):
        return [str(Path(source))]
    return [str(Path(path)) for path in source]
