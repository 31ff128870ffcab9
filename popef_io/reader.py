"""Read containers: walk the blobs, check them, return views.

Parsing a file reads the headers, descriptors and padding of all its blobs. It checks
every rule that needs no payload before it returns anything. A file that breaks a rule
leaves the reader unchanged.  Payloads are read when they are used (`Blob.payload`).
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO, TypeVar

from popef_io.blob import Blob, BlobKey
from popef_io.blob_readers import (
    ExecutableReader,
    FeedReader,
    MetadataReader,
    OpaqueReader,
    TensorReader,
    UnknownBlob,
)
from popef_io.descriptor import decode
from popef_io.errors import (
    CorruptError,
    DuplicateBlobError,
    LimitError,
    Location,
    RuleViolation,
    TruncatedError,
)
from popef_io.layout import (
    HEADER_SIZE,
    MAX_BLOBS,
    MAX_EXECUTABLE_SIZE,
    BlobHeader,
    find_nonzero,
    read_header,
)
from popef_io.logs import TRACE
from popef_io.mapping import FileView, map_file, map_open_file, read_stream
from popef_io.metadata import (
    ExecutableInfo,
    FeedDataInfo,
    Metadata,
    OpaqueInfo,
    TensorDataInfo,
)
from popef_io.validation import check_data_size

_log = logging.getLogger(__name__)

Content = (
    ExecutableReader
    | MetadataReader
    | TensorReader
    | FeedReader
    | OpaqueReader
    | UnknownBlob
)
_Content = TypeVar("_Content")


class Reader:
    """Reader of all blobs in the files parsed so far (PopEF User Guide 5.3).

    The reader is for one thread. Its results are for any thread.
    `verify_payloads=False` skips the payload checksums, for files that were just
    written or checked. `max_executable_size` limits the decompressed size of an
    executable, in bytes. With `detached`, reads of files are copies, for a process that
    must survive any change to the files.
    """

    def __init__(
        self,
        *,
        verify_payloads: bool = True,
        max_executable_size: int = MAX_EXECUTABLE_SIZE,
        detached: bool = False,
    ) -> None:
        self._detached = detached
        self._verify_payloads = verify_payloads
        self._max_executable_size = max_executable_size
        self._contents: list[Content] = []
        self._blob_by_key: dict[BlobKey, Blob] = {}

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Return all blobs in the order in which they were read."""
        return tuple(content.blob for content in self._contents)

    @property
    def metadata(self) -> tuple[Metadata, ...]:
        return tuple(item.metadata for item in self._all(MetadataReader))

    @property
    def executables(self) -> tuple[ExecutableReader, ...]:
        return self._all(ExecutableReader)

    @property
    def tensors(self) -> tuple[TensorReader, ...]:
        return self._all(TensorReader)

    @property
    def feeds(self) -> tuple[FeedReader, ...]:
        return self._all(FeedReader)

    @property
    def opaque_blobs(self) -> tuple[OpaqueReader, ...]:
        return self._all(OpaqueReader)

    @property
    def unknown_blobs(self) -> tuple[UnknownBlob, ...]:
        """Return the blobs of types that this version does not know. `Writer.copy`
        keeps them.
        """
        return self._all(UnknownBlob)

    def parse_file(self, path: str | os.PathLike[str]) -> None:
        """Map the file at `path` and add its blobs.

        Raises the errors of `PopefError` that are about files, and OSError if the file
        is missing or may not be read.
        """
        self._add(map_file(path, detached=self._detached))

    def parse_stream(self, stream: BinaryIO, name: str = "<stream>") -> None:
        """Read `stream` to its end into memory and add its blobs.

        `name` stands for the stream in messages.
        """
        self._add(read_stream(stream, name))

    def parse_descriptor(self, descriptor: int, name: str) -> None:
        """Map the file of an open descriptor and add its blobs.

        The descriptor may be closed afterwards. `name` stands for the file in messages.
        """
        self._add(map_open_file(descriptor, name))

    def verify(self) -> None:
        """Check the checksums of all payloads now. Raises CorruptError."""
        for content in self._contents:
            content.blob.payload()

    def close(self) -> None:
        """Drop the content. Results stay valid."""
        self._contents = []
        self._blob_by_key = {}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        sources = dict.fromkeys(blob.source.name for blob in self.blobs)
        count = len(self._contents)
        return f"<Reader {count} blobs of {', '.join(sources) or 'nothing'}>"

    def _all(self, kind: type[_Content]) -> tuple[_Content, ...]:
        return tuple(item for item in self._contents if isinstance(item, kind))

    def _add(self, source: FileView) -> None:
        blobs = list(_walk(source, self._verify_payloads))
        blob_by_key = dict(self._blob_by_key)
        for blob in blobs:
            key = blob.key
            if key is None:
                continue
            first = blob_by_key.setdefault(key, blob)
            if first is not blob:
                raise DuplicateBlobError(
                    key[0].name,
                    key[1],
                    f"this blob exists already: {first.where}",
                    where=blob.where,
                )
        self._contents += [self._content_of(blob) for blob in blobs]
        self._blob_by_key = blob_by_key
        size = len(source.view)
        _log.debug("read %s: %d blobs, %d bytes", source.name, len(blobs), size)
        for blob in blobs if _log.isEnabledFor(TRACE) else ():
            _log.log(TRACE, "%r", blob)

    def _content_of(self, blob: Blob) -> Content:
        match blob.info:
            case ExecutableInfo() as info:
                return ExecutableReader(blob, info, self._max_executable_size)
            case Metadata() as info:
                return MetadataReader(blob, info)
            case TensorDataInfo() as info:
                return TensorReader(blob, info)
            case FeedDataInfo() as info:
                return FeedReader(blob, info)
            case OpaqueInfo() as info:
                return OpaqueReader(blob, info)
            case None:
                return UnknownBlob(blob)


def _walk(source: FileView, verify_payloads: bool) -> Iterator[Blob]:
    """Check and yield the blobs of `source`. They cover it without gap or remainder."""
    view = source.view
    offset = index = 0
    while True:
        raw = source.read(offset, offset + HEADER_SIZE)
        header = read_header(view, offset, index, source.name, raw)
        yield _read_blob(source, index, offset, header, verify_payloads)
        offset += header.total_size
        index += 1
        rest = len(view) - offset
        where = Location(source.name, offset, index)
        if header.is_last:
            break
        if not rest:
            raise TruncatedError(
                "the next blob (the previous one is not marked as the last)",
                needed=HEADER_SIZE,
                available=0,
                where=where,
            )
        if index == MAX_BLOBS:
            raise LimitError("number of blobs", index + 1, MAX_BLOBS, where=where)
    if rest:
        raise CorruptError(
            f"{rest} bytes follow the blob that is marked as the last; append blobs "
            "with FileWriter, not by joining files",
            where=where,
        )


def _read_blob(
    source: FileView, index: int, offset: int, header: BlobHeader, verify_payload: bool
) -> Blob:
    where = Location(source.name, offset, index, header.type_name)
    begin = offset + HEADER_SIZE
    data = bytes(source.read(begin, begin + header.descriptor_size))
    if zlib.crc32(data) != header.descriptor_crc:
        raise CorruptError(
            "the checksum of the descriptor does not match",
            where=replace(where, offset=begin),
        )
    info = decode(header.type, data, where) if header.type else None
    blob = Blob(source, index, offset, header, info, verify_payload=verify_payload)
    _check_padding(blob)
    _check_payload_size(blob)
    return blob


def _check_padding(blob: Blob) -> None:
    header = blob.header
    payload = blob.offset + header.payload_offset
    for begin, end in (
        (blob.offset + HEADER_SIZE + header.descriptor_size, payload),
        (payload + header.payload_size, blob.offset + header.total_size),
    ):
        position = find_nonzero(blob.source.read(begin, end), 0, end - begin)
        if position is not None:
            where = replace(blob.where, offset=begin + position)
            raise CorruptError("padding bytes must be zero", where=where)


def _check_payload_size(blob: Blob) -> None:
    info = blob.info
    size = blob.header.payload_size
    try:
        if isinstance(info, TensorDataInfo | FeedDataInfo):
            check_data_size(info.tensor_info, info.num_tensors, size)
        elif isinstance(info, Metadata) and size:
            raise RuleViolation(f"metadata must have no payload, got {size} bytes")
    except RuleViolation as violation:
        raise CorruptError(violation.reason, where=blob.where) from None
