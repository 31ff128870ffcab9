# ruff: noqa: N802 - the names are the original's
"""Writing containers (PopEF User Guide 5.2).

One blob is written at a time: beginning the next one closes the one before. The file
is in its place when the writer is closed, which also happens when nobody holds the
writer any more or the program ends; but only `close` says so where it fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Iterable
from enum import Enum
from typing import Any

import numpy as np

import popef_io
from popef.data_info import FeedDataInfo, TensorDataInfo
from popef.metadata import Metadata
from popef.taking import expected

logger = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview | np.ndarray[Any, Any]


class BlobWriter:
    """Takes the bytes of one blob; made by a `Writer`."""

    def __init__(self, blob: popef_io.BlobWriter, writer: object) -> None:
        self._blob = blob
        self._writer = writer  # which must live until the blob is written

    def write(self, data: Buffer, size: int | None = None) -> None:
        """Append the first `size` bytes of `data`; all of them without it."""
        self._blob.write(_first(data, size))

    @property
    def stream(self) -> BlobWriter:
        """Where to write, as it is called in C++: this writer."""
        return self

    def close(self) -> None:
        """Finish the blob."""
        self._blob.close()

    def __repr__(self) -> str:
        return repr(self._blob)


class FeedsWriter:
    """Takes the tensors of several feeds in turns; made by a `Writer`."""

    def __init__(self, feeds: popef_io.FeedsWriter, writer: object) -> None:
        self._feeds = feeds
        self._writer = writer

    def write(self, name: str, data: Buffer, size: int | None = None) -> None:
        """Append the first `size` bytes of `data` to the feed called `name`."""
        self._feeds.write(name, _first(data, size))

    def close(self) -> None:
        """Finish all feeds."""
        self._feeds.close()

    def __repr__(self) -> str:
        return repr(self._feeds)


class Writer:
    """Writes a new container at `path`, in the place of what is there."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._begin(popef_io.Writer(path))

    def _begin(self, writer: popef_io.Writer) -> None:
        self._io = writer
        self._finish = weakref.finalize(self, _close_forgotten, writer)

    def writeMetadata(self, metadata: Metadata) -> None:
        self._io.write(expected(metadata, Metadata).to_io())

    def write(self, metadata: Metadata) -> None:
        """`writeMetadata`, as it is called in C++."""
        self.writeMetadata(metadata)

    def createExecutable(self, name: str, compress: bool = False) -> BlobWriter:
        return BlobWriter(self._io.create_executable(name, compress), self)

    def createTensorData(self, info: TensorDataInfo) -> BlobWriter:
        description = expected(info, TensorDataInfo).to_io()
        return BlobWriter(self._io.create_tensor_data(description), self)

    def createFeedData(self, info: FeedDataInfo) -> BlobWriter:
        description = expected(info, FeedDataInfo).to_io()
        return BlobWriter(self._io.create_feed_data(description), self)

    def createFeeds(self, infos: Iterable[FeedDataInfo]) -> FeedsWriter:
        """Several feeds that are written in turns."""
        descriptions = [expected(info, FeedDataInfo).to_io() for info in infos]
        return FeedsWriter(self._io.create_feeds(descriptions), self)

    def createOpaqueBlob(self, name: str, executable: str = "") -> BlobWriter:
        return BlobWriter(self._io.create_opaque_blob(name, executable), self)

    def close(self) -> None:
        """Finish the last blob and put the file in its place."""
        self._finish.detach()
        self._io.close()

    def __repr__(self) -> str:
        return repr(self._io)


class FileWriter(Writer):
    """Adds blobs to the container at `path`, or begins one."""

    class Mode(Enum):
        """How to open the file."""

        APPEND = 0

    def __init__(
        self, path: str | os.PathLike[str], mode: FileWriter.Mode = Mode.APPEND
    ) -> None:
        self.mode = expected(mode, FileWriter.Mode)
        self._begin(popef_io.FileWriter(path))


def _first(data: Buffer, size: int | None) -> Buffer:
    if size is None:
        return data
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).data
    view = memoryview(data).cast("B")
    if not 0 <= size <= len(view):
        msg = f"size is {size}, the data have {len(view)} bytes"
        raise ValueError(msg)
    return view[:size]


def _close_forgotten(writer: popef_io.Writer) -> None:
    """Close a writer that nobody closed; what it cannot finish it discards."""
    try:
        writer.close()
    except (popef_io.PopefError, OSError) as error:
        with contextlib.suppress(popef_io.PopefError, OSError):
            writer.discard()
        logger.warning("%r was left unfinished: %s", writer, error)
