"""One blob of a file: its place, its description, and its bytes on demand."""

from __future__ import annotations

import zlib

from popef_io.datatypes import BlobType
from popef_io.descriptor import Info, type_of
from popef_io.errors import CorruptError, Location
from popef_io.layout import HEADER_SIZE, BlobHeader
from popef_io.mapping import FileView
from popef_io.metadata import ExecutableInfo, Metadata

BlobKey = tuple[BlobType, str, str]
"""Type, name and executable of content that may exist only once."""


def key_of(info: Info | None) -> BlobKey | None:
    """Return the key of the blob that `info` describes; None for an unknown type."""
    if info is None:
        return None
    if isinstance(info, Metadata):
        return BlobType.METADATA, info.executable, ""
    if isinstance(info, ExecutableInfo):
        return BlobType.POPLAR_EXECUTABLE, info.name, ""
    return type_of(info), info.name, info.executable


class Blob:
    """A blob whose header and descriptor have been checked.

    The payload's checksum is checked at the first access. So a large file is read only
    when it is used, and only once. Several threads may use a blob at once.
    """

    __slots__ = ("_verified", "header", "index", "info", "offset", "source")

    def __init__(
        self,
        source: FileView,
        index: int,
        offset: int,
        header: BlobHeader,
        info: Info | None,
        *,
        verify_payload: bool = True,
    ) -> None:
        self.source = source
        self.index = index
        """Number of the blob in its file, from 0."""
        self.offset = offset
        """Bytes from the beginning of the file."""
        self.header = header
        self.info = info
        """The descriptor; None for an unknown type, whose descriptor stays bytes."""
        self._verified = not verify_payload

    @property
    def type(self) -> BlobType | None:
        """Return the type; None for a type that this version does not know."""
        return self.header.type

    @property
    def name(self) -> str | None:
        """Return the blob's name; None if it is not known. For metadata this is the
        executable's name.
        """
        if self.info is None:
            return None
        if isinstance(self.info, Metadata):
            return self.info.executable
        return self.info.name

    @property
    def executable(self) -> str | None:
        """Return the name of the executable that the blob belongs to. Empty means any
        executable, and None means that it is not known.
        """
        if self.info is None:
            return None
        if isinstance(self.info, ExecutableInfo):
            return self.info.name
        return self.info.executable

    @property
    def key(self) -> BlobKey | None:
        """Return the key that only one blob may have. None for an unknown type."""
        return key_of(self.info)

    @property
    def where(self) -> Location:
        """Return this blob as a place in a message."""
        return Location(
            self.source.name, self.offset, self.index, self.header.type_name, self.name
        )

    def descriptor(self) -> memoryview:
        """Return the descriptor's bytes as they are in the file."""
        begin = self.offset + HEADER_SIZE
        return self.source.read(begin, begin + self.header.descriptor_size)

    def payload(self) -> memoryview:
        """Return the payload's bytes as they are in the file, perhaps compressed.

        Raises CorruptError if the bytes do not match their checksum.
        """
        begin = self.offset + self.header.payload_offset
        view = self.source.read(begin, begin + self.header.payload_size)
        if not self._verified:
            if zlib.crc32(view) != self.header.payload_crc:
                raise CorruptError(
                    f"the checksum of the payload (offset {begin}, {len(view)} bytes) "
                    "does not match",
                    where=self.where,
                )
            self._verified = True
        return view

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name!r}"
        return (
            f"<Blob {self.index} {self.header.type_name}{name} "
            f"offset={self.offset} size={self.header.total_size}>"
        )
