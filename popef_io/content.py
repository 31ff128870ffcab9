"""Content of a blob: its bytes, in place or as a stream."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, Generic, TypeVar

from popef_io.blob import Blob
from popef_io.metadata import FeedDataInfo, OpaqueInfo, TensorDataInfo

InfoT = TypeVar("InfoT", bound=TensorDataInfo | FeedDataInfo | OpaqueInfo)


class BlobContent:
    """The base of every reader of a blob that has contents."""

    __slots__ = ("blob",)

    def __init__(self, blob: Blob) -> None:
        self.blob = blob

    @property
    def size(self) -> int:
        """Return the number of bytes of the contents."""
        return self.blob.header.content_size

    def raw(self) -> memoryview:
        """Return the contents in place, read-only.

        Raises CorruptError if the contents do not match their checksum.
        """
        return self.blob.payload()

    def open(self) -> BinaryIO:
        """Return the contents as a new readable stream with its own position.

        Only bytes that are read are copied. The stream holds the contents, so it
        outlives its reader. For one thread at a time.
        """
        return io.BufferedReader(_ViewStream(self.raw()))


class DescribedContent(BlobContent, Generic[InfoT]):
    """The base of contents whose description has a name."""

    __slots__ = ("info",)

    def __init__(self, blob: Blob, info: InfoT) -> None:
        super().__init__(blob)
        self.info = info

    @property
    def name(self) -> str:
        return self.info.name


class _ViewStream(io.RawIOBase):
    """Reads bytes in memory. Unlike `io.BytesIO` it does not copy them first."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer).cast("B")
        part = self._take(len(room))
        room[: len(part)] = part
        return len(part)

    def readall(self) -> bytes:
        return bytes(self._take(len(self._view)))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position}
        position = begins.get(whence, len(self._view)) + offset
        if position < 0:
            raise ValueError(f"a stream position must be at least 0, got {position}")
        self._position = position
        return position

    def _take(self, size: int) -> memoryview:
        part = self._view[self._position : self._position + size]
        self._position += len(part)
        return part
