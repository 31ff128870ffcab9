"""`Backlog`: bytes that a client has sent behind the request under way."""

from __future__ import annotations

from typing import Final

#: With this many bytes waiting, the server stops reading from the connection.
MOST: Final = 64 * 1024


class Backlog:
    """Bytes that a client sent behind a request, kept until that request is answered.

    `data` is empty if no bytes wait.
    """

    __slots__ = ("_at", "data")

    def __init__(self) -> None:
        self.data = b""
        self._at = 0

    @property
    def is_full(self) -> bool:
        return len(self.data) - self._at >= MOST

    def hold(self, data: bytes, at: int) -> None:
        """Keep `data[at:]` behind the bytes that wait already."""
        if self.data:
            data, at = self.data[self._at :] + data[at:], 0
        self.data, self._at = data, at

    def pop(self) -> tuple[bytes, int]:
        """Return the waiting bytes, and the offset at which they begin."""
        data, at = self.data, self._at
        self.clear()
        return data, at

    def clear(self) -> None:
        self.data, self._at = b"", 0

    def __repr__(self) -> str:
        return f"<Backlog of {len(self.data) - self._at} bytes>"
