# ruff: noqa: N802 - the names are the original's
"""Writing containers (PopEF User Guide 5.2).

One blob is written at a time: beginning the next one closes the one before. The file
appears in its place when the writer is closed. A writer is also closed when nothing
refers to it, or when the program ends, but only `close` reports errors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Iterable
from enum import Enum
from operator import index
from typing import Any

import numpy as np

import popef_io
from popef.data_info import FeedDataInfo, TensorDataInfo
from popef.errors import WrongType, WrongValue, files_explained
from popef.metadata import Metadata
from popef.taking import (
    NotPickled,
    Path,
    Text,
    each,
    expected,
    got,
    number,
    path_of,
    text,
    truth,
)

logger = logging.getLogger(__name__)

Buffer = str | bytes | bytearray | memoryview | np.ndarray[Any, Any]


class BlobWriter(NotPickled):
    """Writes the bytes of one blob, until it is closed or the next blob is begun. A
    `Writer` makes it.

    Text is written in UTF-8, memory that is not contiguous in row-major order.
    """

    def __init__(self, blob: popef_io.BlobWriter, writer: object) -> None:
        self._blob = blob
        self._writer = writer  # keep the writer until the blob is written

    def write(self, data: Buffer, size: int | None = None) -> None:
        """Append the first `size` bytes of `data`; without `size`, all of them.

        Raises a RuntimeError for more bytes than described, and if the blob is closed.
        """
        with files_explained():
            self._blob.write(_first(data, size))

    @property
    def stream(self) -> BlobWriter:
        """Return this writer, which is the stream for writing under its C++ name."""
        return self

    def close(self) -> None:
        """Finish the blob.

        Raises a RuntimeError if it has fewer bytes than described.
        """
        with files_explained():
            self._blob.close()

    def __repr__(self) -> str:
        return repr(self._blob)


class FeedsWriter(NotPickled):
    """Writes the tensors of several feeds in turn. A `Writer` makes it."""

    def __init__(self, feeds: popef_io.FeedsWriter, writer: object) -> None:
        self._feeds = feeds
        self._writer = writer

    def write(self, name: Text, data: Buffer, size: int | None = None) -> None:
        """Append the first `size` bytes of `data` to the feed called `name`."""
        with files_explained():
            self._feeds.write(text(name), _first(data, size))

    def close(self) -> None:
        """Finish all feeds. Raises a RuntimeError if one lacks tensors."""
        with files_explained():
            self._feeds.close()

    def __repr__(self) -> str:
        return repr(self._feeds)


class Writer(NotPickled):
    """Writes a new container at `path`, replacing an existing file.

    Nothing appears there before `close`. For one thread.
    """

    def __init__(self, path: Path) -> None:
        with files_explained():
            self._begin(popef_io.Writer(path_of(path)))

    def _begin(self, writer: popef_io.Writer) -> None:
        self._io = writer
        self._finish = weakref.finalize(self, _close_forgotten, writer, os.getpid())

    def writeMetadata(self, metadata: Metadata) -> None:
        """Write a metadata blob."""
        with files_explained():
            self._io.write(expected(metadata, Metadata).to_io())

    def write(self, metadata: Metadata) -> None:
        """Call `writeMetadata`, by its name in C++."""
        self.writeMetadata(metadata)

    def createExecutable(self, name: Text, compress: bool = False) -> BlobWriter:
        """Begin an executable blob; `compress` deflates what is written to it."""
        with files_explained():
            blob = self._io.create_executable(text(name), truth(compress))
        return BlobWriter(blob, self)

    def createTensorData(self, info: TensorDataInfo) -> BlobWriter:
        """Begin a tensor data blob, of exactly the bytes that `info` describes."""
        description = expected(info, TensorDataInfo).to_io()
        with files_explained():
            return BlobWriter(self._io.create_tensor_data(description), self)

    def createFeedData(self, info: FeedDataInfo) -> BlobWriter:
        """Begin a feed data blob, whose tensors are written one after another."""
        description = expected(info, FeedDataInfo).to_io()
        with files_explained():
            return BlobWriter(self._io.create_feed_data(description), self)

    def createFeeds(self, infos: Iterable[FeedDataInfo]) -> FeedsWriter:
        """Begin several feeds that are written in turns."""
        descriptions = [info.to_io() for info in each(infos, FeedDataInfo)]
        with files_explained():
            return FeedsWriter(self._io.create_feeds(descriptions), self)

    def createOpaqueBlob(self, name: Text, executable: Text = "") -> BlobWriter:
        """Begin a blob of any bytes, which belongs to an executable, or to all."""
        with files_explained():
            blob = self._io.create_opaque_blob(text(name), text(executable))
        return BlobWriter(blob, self)

    def close(self) -> None:
        """Finish the last blob and put the file in its place. Idempotent.

        If no blob was written, one lacks bytes, or writing fails, it raises a
        RuntimeError and removes the file.
        """
        self._finish.detach()
        with files_explained():
            self._io.close()

    def __repr__(self) -> str:
        return repr(self._io)


class FileWriter(Writer):
    """Adds blobs to the container at `path`, or creates it."""

    class Mode(Enum):
        """Ways to open the file."""

        APPEND = 0

    def __init__(self, path: Path, mode: FileWriter.Mode = Mode.APPEND) -> None:
        self.mode = expected(mode, FileWriter.Mode)
        with files_explained():
            self._begin(popef_io.FileWriter(path_of(path)))


def _first(data: Buffer, size: int | None) -> memoryview:
    """Return the first `size` bytes of `data`, in row-major order; without
    `size`, all.
    """
    if isinstance(data, str):
        data = data.encode()
    try:
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        if view.format == "O":
            raise TypeError("an array of objects has no bytes; convert it to numbers")
        if not view.c_contiguous:
            view = memoryview(view.tobytes())
        view = view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError, BufferError) as error:
        raise WrongType(
            f"expected bytes, a string or an array of numbers, {got(data)} ({error})"
        ) from None
    if size is None:
        return view
    if not 0 <= number(size) <= len(view):
        raise WrongValue(f"size is {size}, but the data have {len(view)} bytes")
    return view[: index(size)]


def _close_forgotten(writer: popef_io.Writer, owner: int) -> None:
    """Close a writer that was not closed, and discard the file if it cannot be
    finished.
    """
    if os.getpid() != owner:
        return  # the copy of a forked child: the file belongs to the parent
    try:
        writer.close()
    except (popef_io.PopefError, OSError) as error:
        with contextlib.suppress(popef_io.PopefError, OSError):
            writer.discard()
        logger.warning("%r was not finished: %s", writer, error)
