"""Files in memory: mapped read-only, without keeping a file descriptor.

A mapping lives as long as a view, an array over a view, or a reader refers to its
bytes. It is never closed explicitly, so it cannot be closed too early. Replacing the
file by rename, as `Writer` does, leaves the mapped bytes unchanged. If a mapped file is
cut short in place, the kernel ends a process that touches the lost pages (SIGBUS), as
with any memory-mapped file. A process that must survive this uses a detached source. It
never touches mapped pages itself. Instead the kernel copies the bytes for it, and lost
pages cause an error (EFAULT) and no signal. The mapping then only keeps the bytes of a
file that has been replaced.

One process maps hundreds of models. A file descriptor for each would use up the
process's limit (1024 by default). `mmap.mmap` keeps a descriptor, unless
`trackfd=False` is set, which needs Python 3.13. On older versions this module calls the
C library directly.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from typing import BinaryIO

from popef_io.errors import CorruptError, Location, NotPopefError

_STREAM_STEP = 1 << 20  # bytes read at once from a stream
_SMALL = 1 << 16  # fewer bytes are copied, because a mapping costs more


@dataclass(frozen=True, slots=True, eq=False)
class FileView:
    """The bytes of one file or stream, and its name for messages."""

    name: str
    view: memoryview
    """All bytes, read-only, aligned to a page. Do not read them if `detached`."""
    file: tuple[int, int, int] | None = None
    """(device, inode, bytes) of the mapped file; None for a stream."""
    detached: bool = False

    def read(self, begin: int, end: int) -> memoryview:
        """Return the bytes from `begin` to `end`, or fewer at the end of the file.

        They are in place, or a copy if `detached` is set.
        Raises CorruptError if the file has become shorter since.
        """
        part = self.view[begin:end]
        if not self.detached or not part:
            return part
        try:
            with _opened(os.memfd_create, "popef", os.MFD_CLOEXEC) as file:
                copy = file.fileno()
                self._copy_to(copy, part)
                if len(part) <= _SMALL:
                    return memoryview(os.pread(copy, len(part), 0))
                return map_descriptor(copy, len(part))
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            where = Location(self.name, begin)
            raise CorruptError(
                "the file was truncated while it was in use", where=where
            ) from None

    def open(self) -> int:
        """Return a descriptor of the same bytes, for another process. The caller owns
        it.

        The descriptor is of the file if its path still leads to the file, else of a
        copy in memory.
        """
        if self.file is not None:
            with contextlib.suppress(OSError):
                # The path may lead to a pipe by now, which must not block.
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
                descriptor = os.open(self.name, flags)
                if _identity(os.fstat(descriptor)) == self.file:
                    return descriptor
                os.close(descriptor)
        descriptor = os.memfd_create("popef", os.MFD_CLOEXEC)
        try:
            self._copy_to(descriptor, self.view)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @staticmethod
    def _copy_to(descriptor: int, view: memoryview) -> None:
        """Write `view` without touching its memory in this process. Raises OSError
        (EFAULT) if a part lies beyond the end of its file.
        """
        done = 0
        while done < len(view):
            done += os.write(descriptor, view[done:])

    def __repr__(self) -> str:
        return f"<FileView {self.name} {len(self.view)} bytes>"


def map_file(path: str | os.PathLike[str], *, detached: bool = False) -> FileView:
    """Map the file at `path`. No descriptor stays open.

    With `detached`, reads are copies, so no change to the file can end this process.
    Raises OSError if the file is missing or unreadable, NotPopefError if it is not a
    regular file (a directory, a pipe, a device). Never blocks on a pipe.
    """
    name = os.fspath(path)
    where = Location(name, 0)
    if stat.S_ISDIR(os.stat(name).st_mode):  # `_opened` takes none
        raise NotPopefError("expected a regular file, got a directory", where=where)
    with _opened(os.open, name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            what = "expected a regular file, got a special file"
            raise NotPopefError(what, where=where)
        if status.st_size == 0:  # not mappable
            return FileView(name, memoryview(b""))
        view = map_descriptor(file.fileno(), status.st_size)
        return FileView(name, view, _identity(status), detached)


def _opened(call: Callable[[str, int], int], name: str, flags: int) -> FileIO:
    """Return the file that `call` opens, which closes itself if nothing refers to it.

    C code makes both calls, so no signal handler can raise an exception between them.
    """
    return next(map(FileIO, map(call, (name,), (flags,))))


def map_open_file(descriptor: int, name: str) -> FileView:
    """Map the file of a descriptor, which the caller keeps. `name` is for messages.

    It is for memory that another process has passed on (`FileView.open`).
    """
    size = os.fstat(descriptor).st_size
    if size == 0:
        return FileView(name, memoryview(b""))
    return FileView(name, map_descriptor(descriptor, size))


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_size


def read_stream(stream: BinaryIO, name: str) -> FileView:
    """Read `stream` to its end into memory that is aligned like a mapped file.

    Uses as much memory as the stream has bytes, and never trusts a stated size.
    """
    steps: deque[bytes] = deque()
    size = 0
    while step := stream.read(_STREAM_STEP):
        steps.append(step)
        size += len(step)
    if not size:
        return FileView(name, memoryview(b""))
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    while steps:
        memory.write(steps.popleft())
    return FileView(name, memoryview(memory).toreadonly())


if sys.version_info >= (3, 13):

    def map_descriptor(
        descriptor: int, size: int, *, writable: bool = False
    ) -> memoryview:
        """Map the first `size` bytes, shared. Keep no descriptor if possible.

        The mapping ends with its last view.
        """
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return memoryview(mmap.mmap(descriptor, size, access=access, trackfd=False))

else:
    # off_t has 64 bits, with and without large file support, because the processor has.
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    )
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    _MAP_FAILED = ctypes.c_void_p(-1).value

    def map_descriptor(
        descriptor: int, size: int, *, writable: bool = False
    ) -> memoryview:
        """Map the first `size` bytes, shared. Keep no descriptor if possible.

        The mapping ends with its last view.
        """
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, size, access, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        # Views refer to this array, so the array lives as long as the last view.
        array = (ctypes.c_ubyte * size).from_address(address)
        unmap = weakref.finalize(array, _libc.munmap, address, size)
        # Do not unmap at exit, because other threads may still read. The kernel cleans
        # up.
        unmap.atexit = False
        view = memoryview(array).cast("B")
        # Writing to pages that are mapped for reading would end the process, so callers
        # only receive read-only views.
        return view if writable else view.toreadonly()
