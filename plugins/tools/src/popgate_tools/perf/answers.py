"""Reading of answers in a load generator: status, end and reason of a failure."""

from __future__ import annotations

import json

#: Sizes of a body without a Content-Length.
UNKNOWN, CHUNKED = -1, -2
#: The start of an event that says how a stream failed (docs/reference/http-api.md).
_ERROR = b'data: {"error"'
#: Bytes of a body that are kept for its error.
KEPT = 2_000


def read_head(head: bytes) -> tuple[bool, int]:
    """Return whether the status is 200, and the size of the body in bytes."""
    ok = head[:12].lower() == b"http/1.1 200"
    head = head.lower()
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        return ok, int(head[at + 17 :].split(b"\r\n", 1)[0])
    at = head.find(b"\r\ntransfer-encoding:")
    if at >= 0 and b"chunked" in head[at + 20 :].split(b"\r\n", 1)[0]:
        return ok, CHUNKED
    return ok, UNKNOWN


def is_last(head: bytes) -> bool:
    """Return whether an answer is the last of its connection."""
    return b"\r\nconnection: close" in head.lower()


def reason_of(answer: bytes) -> str:
    """Return why an answer failed, from its head and the start of its body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode(errors="replace").partition(" ")[2]
    said = _said(body)
    return f"{status}: {said}" if said else status


def _said(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    try:
        document = json.loads(text)
    except ValueError:
        return text[:500]
    said = document.get("error") if isinstance(document, dict) else None
    return str(said or text[:500])


class ChunkedBody:
    """A chunked body as it comes, for example a stream of events.

    `error` says how the stream failed; it is empty if no event does.
    """

    __slots__ = ("_is_last", "_left", "_rest", "_tail", "error")

    def __init__(self) -> None:
        self.error = ""
        self._rest = b""
        self._left = 0  # bytes of this chunk, the end of its line included
        self._is_last = False
        self._tail = b""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; return whether the body is complete.

        Raises ValueError if they are no chunked body.
        """
        rest = self._rest + data
        while True:
            if self._left:
                self._look(rest[: self._left])
                took = min(self._left, len(rest))
                self._left -= took
                rest = rest[took:]
            line, found, after = rest.partition(b"\r\n")
            if self._left or not found:
                self._rest = b"" if self._left else rest
                return False
            rest = after
            if self._is_last:
                if not line:
                    return True
                continue  # a trailer
            size = int(line.split(b";", 1)[0], 16)
            self._is_last = size == 0
            self._left = size + 2 if size else 0

    def _look(self, data: bytes) -> None:
        """Look for an event that is an error."""
        seen = self._tail + data
        at = seen.find(_ERROR)
        if at < 0:
            self._tail = seen[-len(_ERROR) :]
            return
        self._tail = seen[at : at + KEPT]
        said = self._tail.removeprefix(b"data: ").split(b"\n", 1)[0]
        self.error = f"the stream failed: {_said(said)}"
