"""A file that replaces another in one step, or is discarded without a trace.

The new content is written to a temporary file in the same directory and renamed over
the target once it is complete and on disk.  A process that has the old file open or
mapped keeps the old content.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import weakref
from collections.abc import Iterator

from popef_io.errors import InvalidValueError, WriterStateError


class Replacement:
    """The file that will be at `path` after `commit`. `discard` removes it.

    A symbolic link at `path` is followed. The permissions of an existing file are kept.
    If neither method is called, the temporary file is removed with this object, at the
    latest when the interpreter exits. A forked child cannot write the file, and does
    not remove it. Raises OSError if the directory is missing or full, and
    InvalidValueError if the file at `path` must not be replaced.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._owner = os.getpid()
        self.path = os.path.realpath(os.fspath(path))
        mode = _mode_of(self.path)
        directory = os.path.dirname(self.path)
        self._temporary = os.path.join(directory, f".popef-{secrets.token_hex(8)}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with _about(self.path):
            self._descriptor = os.open(self._temporary, flags, 0o666)
        self._abandon = weakref.finalize(
            self, _abandon, self._descriptor, self._temporary, self._owner
        )
        if mode is not None:
            os.fchmod(self._descriptor, mode)

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data` at `offset`."""
        self._check_open()
        view = memoryview(data)
        with _about(self.path):
            while view:
                count = os.pwrite(self._descriptor, view, offset)
                view = view[count:]
                offset += count

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        self._check_open()
        os.ftruncate(self._descriptor, size)

    def commit(self) -> None:
        """Put the file on disk and in the target's place. Raises OSError on failure."""
        self._check_open()
        with _about(self.path):
            os.fsync(self._descriptor)
            os.replace(self._temporary, self.path)
        self._abandon.detach()
        os.close(self._descriptor)
        _sync_directory(os.path.dirname(self.path))

    def discard(self) -> None:
        """Remove the temporary file. May be called again, and after `commit`."""
        self._abandon()

    def __repr__(self) -> str:
        return f"<Replacement of {self.path}>"

    def _check_open(self) -> None:
        if os.getpid() != self._owner:
            raise WriterStateError(
                f"the writer of {self.path} belongs to process {self._owner}; the "
                f"forked process {os.getpid()} must open a writer of its own"
            )
        # The descriptor's number may belong to another file by now.
        if not self._abandon.alive:
            raise WriterStateError(f"the writer of {self.path} is closed")


@contextlib.contextmanager
def _about(path: str) -> Iterator[None]:
    """Make errors of the operating system name `path`, because callers do not know the
    temporary file's name.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _mode_of(path: str) -> int | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise InvalidValueError(
            f"{path} is not a regular file; the writer replaces regular files only"
        )
    return stat.S_IMODE(status.st_mode)


def _abandon(descriptor: int, temporary: str, owner: int) -> None:
    if os.getpid() != owner:
        return  # the file belongs to the parent
    os.close(descriptor)
    with contextlib.suppress(OSError):
        os.unlink(temporary)


def _sync_directory(path: str) -> None:
    """Make the rename itself durable. Ignore file systems that cannot."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
