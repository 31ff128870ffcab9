"""Write containers blob after blob to a temporary file, which replaces the target at
the end.

States of a writer:

    OPEN ──create_*()──> OPEN with a live blob ──close of the blob──> OPEN
    OPEN ──close()──> CLOSED        the file is in its place
    OPEN ──discard() or an error──> DISCARDED        nothing is left

All other calls raise `WriterStateError`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from popef_io.blob import Blob, BlobKey, key_of
from popef_io.blob_writer import BlobWriter
from popef_io.descriptor import Info
from popef_io.draft import Draft, WriterState
from popef_io.errors import DuplicateBlobError, LimitError, WriterStateError
from popef_io.feeds_writer import FeedsWriter
from popef_io.layout import MAX_BLOBS, BlobHeader
from popef_io.metadata import (
    ExecutableInfo,
    FeedDataInfo,
    Metadata,
    OpaqueInfo,
    TensorDataInfo,
)
from popef_io.reader import Reader
from popef_io.replacement import Replacement

_log = logging.getLogger(__name__)


class Writer(Draft):
    """A new container at `path` (PopEF User Guide 5.2).

    Nothing changes at `path` before `close`, which needs at least one blob. Leaving the
    `with` block closes the writer, and an exception inside the block discards it. There
    is one live blob at a time. Making the next blob closes the previous one. The writer
    refuses everything that a reader would refuse (InvalidValueError, LimitError,
    DuplicateBlobError). For one thread.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._output = Replacement(path)
        self._live: BlobWriter | FeedsWriter | None = None
        self._keys: set[BlobKey] = set()
        self._end = 0
        """Bytes of finished blobs: the offset of the next one."""
        self._last: tuple[int, BlobHeader] | None = None
        """Offset and header of the last finished blob."""
        self._count = 0

    def write(self, metadata: Metadata) -> None:
        """Write a metadata blob."""
        self._begin(metadata).close()

    def create_executable(self, name: str, compress: bool = False) -> BlobWriter:
        """Begin an executable blob. `compress` stores it deflated (zlib)."""
        return self._begin(ExecutableInfo(name), compress=compress)

    def create_tensor_data(self, info: TensorDataInfo) -> BlobWriter:
        """Begin a tensor data blob."""
        return self._begin(info)

    def create_feed_data(self, info: FeedDataInfo) -> BlobWriter:
        """Begin a feed data blob. Its tensors are written one after another."""
        return self._begin(info)

    def create_feeds(self, infos: Iterable[FeedDataInfo]) -> FeedsWriter:
        """Begin several feed data blobs, to be written in turns."""
        self._prepare()
        blobs: list[BlobWriter] = []
        offset = self._end
        for info in infos:
            self._check_new(info, len(blobs) + 1)
            blobs.append(BlobWriter(self._output, offset, info, _ignored))
            offset += blobs[-1].reserved_size
        self._live = FeedsWriter(blobs, self._finished)
        return self._live

    def create_opaque_blob(self, name: str, executable: str = "") -> BlobWriter:
        """Begin an opaque blob. Without `executable` it belongs to all executables."""
        return self._begin(OpaqueInfo(name, executable))

    def copy(self, blob: Blob) -> None:
        """Copy a blob of another file unchanged, even a blob of unknown type.

        Raises CorruptError if its payload is damaged.
        """
        self._prepare()
        self._check_new(blob.info, 1)
        blob.payload()
        header = blob.header.with_last(False)
        begin = blob.offset
        data = blob.source.read(begin, begin + header.total_size)
        try:
            self._output.write_at(self._end, data)
            self._output.write_at(self._end, header.encode())
        except BaseException:
            self.discard()
            raise
        self._add(self._end, header, blob.key)

    def close(self) -> None:
        """Finish the live blob and put the file in its place. May be called again.

        Raises WriterStateError if there is no blob or an incomplete one, and OSError if
        the disk fails. No file is then left.
        """
        if self.state is WriterState.CLOSED:
            return
        self.check_open()
        try:
            if self._live:
                self._live.close()
            self._commit()
        except BaseException:
            self.discard()
            raise
        self.state = WriterState.CLOSED
        path = self._output.path
        _log.info("wrote %s: %d blobs, %d bytes", path, self._count, self._end)

    def discard(self) -> None:
        """Discard everything written. The target is unchanged."""
        if self.state is WriterState.OPEN:
            self.state = WriterState.DISCARDED
            if self._live:
                self._live.discard()
            self._output.discard()

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} {self._output.path} {self.state.value} {self._count} blobs>"

    def __str__(self) -> str:
        return "the writer"

    def _begin(self, info: Info, *, compress: bool = False) -> BlobWriter:
        self._prepare()
        self._check_new(info, 1)
        self._live = BlobWriter(
            self._output, self._end, info, self._finished, compress=compress
        )
        return self._live

    def _prepare(self) -> None:
        self.check_open()
        if self._live:
            self._live.close()

    def _check_new(self, info: Info | None, count: int) -> None:
        if self._count + count > MAX_BLOBS:
            raise LimitError("number of blobs", self._count + count, MAX_BLOBS)
        key = key_of(info)
        if key is not None and key in self._keys:
            raise DuplicateBlobError(
                key[0].name, key[1], f"{key[0].name} blob {key[1]!r} exists already"
            )

    def _finished(self, *blobs: BlobWriter) -> None:
        self._live = None
        for blob in blobs:
            if blob.state is WriterState.CLOSED and blob.header:
                self._add(blob.offset, blob.header, key_of(blob.info))
        self._output.truncate(self._end)

    def _add(self, offset: int, header: BlobHeader, key: BlobKey | None) -> None:
        self._last = offset, header
        self._end = offset + header.total_size
        self._count += 1
        if key:
            self._keys.add(key)

    def _commit(self) -> None:
        if self._last is None:
            raise WriterStateError("a container needs at least one blob")
        self._mark_last(True)
        self._output.commit()

    def _mark_last(self, last: bool) -> None:
        if self._last:
            offset, header = self._last
            self._output.write_at(offset, header.with_last(last).encode())


def _ignored(*_: BlobWriter) -> None:
    """Ignore a blob of a FeedsWriter, which reports all its blobs together."""


class FileWriter(Writer):
    """Appends blobs to the container at `path`, or creates one (PopEF User Guide 5.2).

    The file is first checked as a reader would check it, and copied to a temporary
    file. `close` then replaces the file. So its readers are not disturbed, and a
    failure leaves it unchanged. Closing without a new blob changes nothing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        reader = Reader()
        if os.path.exists(path) and os.path.getsize(path):
            reader.parse_file(path)
        super().__init__(path)
        try:
            self._take_over(reader.blobs)
        except BaseException:
            self.discard()
            raise
        self._count_before = self._count

    def _take_over(self, blobs: Iterable[Blob]) -> None:
        for blob in blobs:
            self._add(blob.offset, blob.header, blob.key)
        if self._count:
            self._output.write_at(0, blob.source.view)
            self._mark_last(False)

    def _commit(self) -> None:
        if self._count and self._count == self._count_before:
            self._output.discard()
        else:
            super()._commit()
