"""Bodies in several parts, read and written without joining them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from app.codec.memory_check import reserve
from app.give_way import AT_ONCE, give_way
from engine import Buffer

# Larger bodies are sent in their parts, because joining copies them. Smaller ones are
# joined, because sending several parts costs more.
JOIN_BELOW: Final = 64 * 1024
# Bytes that are copied before other threads may run.
_COPIED: Final = 1 << 20


class Chunks:
    """Reads forward through the chunks of a body and returns views.

    The caller has checked that enough bytes are left.
    """

    __slots__ = ("_chunks", "_index", "_offset", "left")

    def __init__(self, chunks: list[Buffer], left: int) -> None:
        self._chunks = chunks
        self._index = 0
        self._offset = 0
        self.left = left

    def read(self, count: int) -> Sequence[memoryview]:
        """Read the next `count` bytes as views, none of them empty."""
        self.left -= count
        start, end = self._offset, self._offset + count
        chunk: Buffer = self._chunks[self._index] if count else b""
        if end <= len(chunk):
            self._offset = end
            return (memoryview(chunk)[start:end],) if count else ()
        parts: list[memoryview] = []
        while count:
            chunk = self._chunks[self._index]
            available = len(chunk) - self._offset
            if available <= count:
                if available:
                    parts.append(memoryview(chunk)[self._offset :])
                self._index += 1
                self._offset = 0
                count -= available
            else:
                end = self._offset + count
                parts.append(memoryview(chunk)[self._offset : end])
                self._offset = end
                count = 0
        return parts

    def read_bytes(self, count: int) -> bytes:
        """Return the next `count` bytes, joined."""
        parts = self.read(count)
        return parts[0].tobytes() if len(parts) == 1 else b"".join(parts)

    def read_array(self, count: int) -> npt.NDArray[np.uint8]:
        """Return the next `count` bytes as an array, a view if they are in one chunk.

        If they must be copied, numpy releases the interpreter's lock meanwhile, which
        joining does not.
        """
        parts = self.read(count)
        if len(parts) == 1:
            return np.frombuffer(parts[0], np.uint8)
        return _copied(parts, count)

    def __repr__(self) -> str:
        return f"<Chunks {len(self._chunks)} chunks, {self.left} bytes left>"


def _copied(parts: Sequence[Buffer], count: int) -> npt.NDArray[np.uint8]:
    """Return the `count` bytes of all parts in one, copied in blocks."""
    reserve(count)
    whole = np.empty(count, np.uint8)
    start = since = 0
    for part in parts:
        data = np.frombuffer(part, np.uint8)
        for at in range(0, data.size, _COPIED):
            piece = data[at : at + _COPIED]
            whole[start : start + piece.size] = piece
            start += piece.size
            since += piece.size
            if since >= _COPIED and count > AT_ONCE:
                since = 0
                give_way()
    return whole


def join(chunks: list[Buffer]) -> bytes:
    """Return the whole body as one object; the chunk itself if it is the only one."""
    if len(chunks) == 1:
        chunk = chunks[0]
        if isinstance(chunk, bytes):
            return chunk
    size = sum(map(len, chunks))
    reserve(size)
    # Joining releases the interpreter's lock only if all are `bytes`.
    parts: list[bytes] = []
    for chunk in chunks:
        if isinstance(chunk, bytes):
            parts.append(chunk)
        else:
            starts = range(0, len(chunk), _COPIED)
            parts += [bytes(chunk[at : at + _COPIED]) for at in starts]
    return b"".join(parts)


def gather(chunks: Sequence[Buffer]) -> Buffer:
    """Return the whole body in one, like `join`. A large body is copied in blocks, so
    that other threads run in between. The result is then a view.
    """
    if len(chunks) == 1:
        return chunks[0]
    size = sum(map(len, chunks))
    return b"".join(chunks) if size <= AT_ONCE else _copied(chunks, size).data


def beginning(chunks: list[Buffer], size: int) -> bytes:
    """Return the first `size` bytes of a body, or more. The rest is not copied."""
    parts: list[Buffer] = []
    for chunk in chunks:
        is_whole = isinstance(chunk, bytes) and not parts
        parts.append(chunk if is_whole else chunk[:size])
        if (size := size - len(chunk)) <= 0:
            break
    return join(parts)


def in_parts(pieces: Sequence[Buffer], total: int) -> Sequence[Buffer]:
    """Return a response body of `total` bytes in few parts, without copying large ones.

    A small one stays in pieces: the sender joins them with its head.
    """
    if total <= JOIN_BELOW:
        return pieces
    parts: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < JOIN_BELOW:
            small.append(piece)
            continue
        if small:
            parts.append(b"".join(small))
            small = []
        parts.append(piece)
    if small:
        parts.append(b"".join(small))
    return parts
