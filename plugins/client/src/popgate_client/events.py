"""Server-sent events, as they come in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from popgate_client.errors import ServerError

_LONGEST = 1 << 30


class EventReader:
    """Parses pieces of a stream into the data of its events."""

    def __init__(self) -> None:
        #: Pieces of the line that has begun, and their length.
        self._pending: list[bytes] = []
        self._length = 0
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of the events that this piece completes."""
        first, *lines = piece.split(b"\n")
        self._pending.append(first)
        self._length += len(first)
        if self._length > _LONGEST:
            raise ServerError("an event of the stream is too long")
        if lines:
            lines = [b"".join(self._pending), *lines]
            last = lines.pop()
            self._pending, self._length = [last], len(last)
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []

    def end(self) -> None:
        """End the stream. Raises if an event was cut off."""
        if self._length or self._data:
            raise ServerError("the stream ended in the middle of an event", sent=True)
