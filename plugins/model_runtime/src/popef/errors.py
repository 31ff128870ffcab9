"""Errors of `popef` and `model_runtime` that are built-in exceptions as well.

The original raises RuntimeError for exceptions of C++, and programs catch it. Python
uses TypeError, ValueError or OSError for such mistakes. Each error here is a
RuntimeError and one of these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class WrongType(TypeError, RuntimeError):
    """An argument has a wrong type."""


class WrongValue(ValueError, RuntimeError):
    """An argument has the right type, but its value is not allowed."""


class FileError(OSError, RuntimeError):
    """The operating system could not perform an operation on a file."""


class FileMissing(FileError, FileNotFoundError):
    """The file, or its directory, does not exist."""


class FileRefused(FileError, PermissionError):
    """The process may not read or write the file."""


@contextlib.contextmanager
def files_explained() -> Iterator[None]:
    """Raise errors of the operating system as a `FileError`, with number, message and
    path.
    """
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        kind = FileError
        if isinstance(error, FileNotFoundError):
            kind = FileMissing
        elif isinstance(error, PermissionError):
            kind = FileRefused
        args = (error.errno, error.strerror, error.filename)
        raise (kind(*args) if error.filename else kind(*error.args)) from error
