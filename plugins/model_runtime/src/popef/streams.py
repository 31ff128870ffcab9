"""Contents of blobs as streams."""

from __future__ import annotations

import io
from typing import Any, BinaryIO


def stream_of(view: memoryview) -> BinaryIO:
    """Return the bytes in memory as a new readable stream with its own position.

    Only bytes that are read are copied. The stream holds the memory, so it outlives
    its reader. For one thread at a time.
    """
    return io.BufferedReader(_ViewStream(view))


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
