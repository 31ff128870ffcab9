# ruff: noqa: N802 - the names are the original's
"""Reading containers (PopEF User Guide 5.3)."""

from __future__ import annotations

from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np

import popef_io
from popef.data_info import FeedDataInfo, TensorDataInfo
from popef.errors import WrongType, files_explained
from popef.metadata import Metadata
from popef.streams import stream_of
from popef.taking import NotPickled, Path, got, path_of

BlobReader = TypeVar(
    "BlobReader",
    popef_io.ExecutableReader,
    popef_io.TensorReader,
    popef_io.FeedReader,
    popef_io.OpaqueReader,
)


class _Face(Generic[BlobReader]):
    """The reader of a blob, over a reader of `popef_io`."""

    def __init__(self, reader: BlobReader) -> None:
        self._reader: BlobReader = reader

    def __repr__(self) -> str:
        return repr(self._reader)


class _DataFace(_Face[BlobReader]):
    """The reader of a blob of data."""

    def getStandaloneDataStream(self) -> BinaryIO:
        """Return a stream of the contents.

        Each stream has its own position, and outlives its reader.
        """
        return stream_of(self._reader.raw())

    def getAvailableReadSize(self) -> int:
        """Return the size of the contents in bytes."""
        return self._reader.size


class ExecutableReader(_Face[popef_io.ExecutableReader]):
    """An executable blob; `name` is the executable's."""

    def __init__(self, reader: popef_io.ExecutableReader) -> None:
        super().__init__(reader)
        self.name = reader.name

    def executable(self) -> bytes:
        """Return the contents, decompressed if needed."""
        return bytes(self._reader.raw())

    def getStandaloneExecutableStream(self) -> BinaryIO:
        """Return a stream of the decompressed contents, like
        `getStandaloneDataStream`.
        """
        return stream_of(self._reader.raw())


class TensorReader(_DataFace[popef_io.TensorReader]):
    """A tensor data blob; `info` is its `TensorDataInfo`."""

    def __init__(self, reader: popef_io.TensorReader) -> None:
        super().__init__(reader)
        self.info = TensorDataInfo.from_io(reader.info)

    def data(self) -> np.ndarray[Any, Any]:
        """Return the tensor: a read-only view of the file."""
        return self._reader.data()


class FeedReader(_DataFace[popef_io.FeedReader]):
    """A feed data blob; `info` is its `FeedDataInfo`."""

    def __init__(self, reader: popef_io.FeedReader) -> None:
        super().__init__(reader)
        self.info = FeedDataInfo.from_io(reader.info)

    def data(self) -> np.ndarray[Any, Any]:
        """Return all tensors as one array of shape (numTensors, ...)."""
        return self._reader.data()


class OpaqueReader(_DataFace[popef_io.OpaqueReader]):
    """An opaque blob: bytes called `name` that belong to `executable` (empty: to all
    of them)."""

    def __init__(self, reader: popef_io.OpaqueReader) -> None:
        super().__init__(reader)
        self.name = reader.name
        self.executable = reader.executable

    def data(self) -> bytes:
        """Return the contents."""
        return bytes(self._reader.raw())


class Reader(NotPickled):
    """Reader of all files parsed so far, in their order.

    A file that breaks a rule raises a RuntimeError and adds nothing. Returned objects
    outlive the reader. For one thread at a time.
    """

    def __init__(self) -> None:
        self.io = popef_io.Reader()
        """The reader of `popef_io`."""

    def parseFile(self, path: Path) -> None:
        """Add the blobs of a file."""
        with files_explained():
            self.io.parse_file(path_of(path))

    def parseStream(self, stream: BinaryIO) -> None:
        """Add the blobs of a stream of bytes, which is read to its end."""
        try:
            is_binary = isinstance(stream.read(0), bytes)
        except AttributeError:
            is_binary = False
        if not is_binary:
            raise WrongType(f"expected a stream of bytes, {got(stream)}")
        with files_explained():
            self.io.parse_stream(stream)

    def metadata(self) -> list[Metadata]:
        """Return the metadata of the executables in a new list, which you
        may change.
        """
        return [Metadata.from_io(metadata) for metadata in self.io.metadata]

    def executables(self) -> list[ExecutableReader]:
        """Return the executable blobs."""
        return [ExecutableReader(reader) for reader in self.io.executables]

    def tensors(self) -> list[TensorReader]:
        """Return the tensor data blobs."""
        return [TensorReader(reader) for reader in self.io.tensors]

    def feeds(self) -> list[FeedReader]:
        """Return the feed data blobs."""
        return [FeedReader(reader) for reader in self.io.feeds]

    def opaqueBlobs(self) -> list[OpaqueReader]:
        """Return the opaque blobs."""
        return [OpaqueReader(reader) for reader in self.io.opaque_blobs]

    def __repr__(self) -> str:
        return repr(self.io)
