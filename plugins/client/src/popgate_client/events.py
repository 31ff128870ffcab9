"""Server-sent events, as they come in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from popgate_client.errors import ServerError

_LONGEST = 1 << 30


class EventReader:
    """Parses pieces of a stream into the data of its events."""

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of the events that this piece completes."""
        *lines, self._pending = (self._pending + piece).split(b"\n")
        if len(self._pending) > _LONGEST:
            raise ServerError("an event of the stream is too long")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []

    def end(self) -> None:
        """End the stream. Raises if an event was cut off."""
        if self._pending or self._data:
            raise ServerError("the stream ended in the middle of an event", sent=True)
