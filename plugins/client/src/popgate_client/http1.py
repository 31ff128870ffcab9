"""HTTP/1.1 as a client reads it, without input or output.

A connection asks for memory, receives the next bytes into it, and reports their number.
Large bodies arrive where their arrays will be, so nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from popgate_client.errors import ConnectionFailed, InvalidRequest, ServerError

_ROOM = 1 << 16  # bytes for the head of an answer, and the first part of its body
#: Arrays in an answer begin at a multiple of this, in bytes.
_ALIGNMENT = 16
_BODILESS = frozenset({204, 304})


class Answer:
    """One answer. `json_length`: how much of the body is the document, -1 for all."""

    __slots__ = ("_headers", "body", "json_length", "keep", "status")

    def __init__(
        self,
        status: int,
        headers: bytes | Mapping[str, str],
        body: memoryview | bytes,
        *,
        json_length: int = -1,
        keep: bool = True,
    ) -> None:
        self.status = status
        self._headers = headers
        self.body = body
        self.json_length = json_length
        self.keep = keep

    def header(self, name: str) -> str:
        """Return a header by its name in lower case; empty if it is missing."""
        if isinstance(self._headers, bytes):
            return _value(self._headers, self._headers.lower(), name.encode()).decode(
                "latin-1"
            )
        return self._headers.get(name, "")


class AnswerReader:
    """Reads one answer after the other from a connection. Not thread-safe.

    Raises `ServerError` for answers that are not HTTP or larger than `limit` bytes.
    """

    __slots__ = (
        "_answer", "_body", "_chunked", "_filled", "_limit", "_room", "_view",
    )  # fmt: skip

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._room = bytearray(_ROOM)
        self._view = memoryview(self._room)
        self.reset()

    def reset(self) -> None:
        """Prepare for the next answer."""
        self._filled = 0
        self._answer: Answer | None = None
        self._body: memoryview | None = None
        self._chunked: _Chunks | None = None

    @property
    def begun(self) -> bool:
        """Return whether a byte of the answer has arrived."""
        return self._filled > 0 or self._answer is not None

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes."""
        if self._body is not None:
            return self._body[self._filled :]
        return self._view if self._answer is not None else self._view[self._filled :]

    def received(self, count: int) -> Answer | None:
        """Return the answer if the `count` received bytes complete it."""
        if self._body is not None:
            self._filled += count
            return self._answer if self._filled == len(self._body) else None
        if self._answer is not None:
            assert self._chunked is not None
            return self._feed(self._view[:count])
        begin = max(0, self._filled - 3)
        self._filled += count
        return self._read_head(begin)

    def ended(self) -> Answer:
        """Return the answer that ends with the connection. Raises `ConnectionFailed` if
        the answer is incomplete or missing.
        """
        if self._chunked is not None and self._chunked.until_end:
            assert self._answer is not None
            self._answer.body = bytes(self._chunked.data)
            return self._answer
        if not self.begun:
            msg = "the server closed the connection without an answer"
        else:
            msg = "the connection ended in the middle of the answer"
        raise ConnectionFailed(msg, sent=True)

    def _read_head(self, begin: int) -> Answer | None:
        end = self._room.find(b"\r\n\r\n", begin, self._filled)
        if end < 0:
            if not b"HTTP/1.".startswith(self._room[:7][: self._filled]):
                raise _no_http(self._room[: self._filled])
            if self._filled == _ROOM:
                raise ServerError(f"the answer's head is longer than {_ROOM} bytes")
            return None
        head, rest = bytes(self._view[:end]), self._view[end + 4 : self._filled]
        status = _status(head)
        if 100 <= status < 200:  # an interim answer: another head follows
            self._room[: len(rest)] = bytes(rest)
            self._filled = len(rest)
            return self._read_head(0) if self._filled else None
        lower = head.lower()
        keep = b"\r\nconnection: close" not in lower and lower[7:8] != b"0"
        answer = self._answer = Answer(status, head, b"", keep=keep)
        if status in _BODILESS:
            return answer
        if b"\r\ntransfer-encoding:" in lower:
            self._chunked = _Chunks(self._limit)
            return self._feed(rest)
        if (size := _number(head, lower, b"content-length")) < 0:
            self._chunked = _Chunks(self._limit, until_end=True)
            answer.keep = False
            return self._feed(rest)
        if size > self._limit:
            msg = f"the answer has {size} bytes, more than max_answer ({self._limit})"
            raise ServerError(msg, status=status)
        length = _number(head, lower, b"inference-header-content-length")
        answer.json_length = length
        pad = -length % _ALIGNMENT if length > 0 else 0
        body = np.empty(pad + size, np.uint8).data[pad:]
        answer.body = body
        count = len(rest)
        if count > size:  # bytes after the answer belong to no request
            answer.keep = False
            rest, count = rest[:size], size
        body[:count] = rest
        if count == size:
            return answer
        self._body, self._filled = body, count
        return None

    def _feed(self, data: memoryview) -> Answer | None:
        assert self._chunked is not None
        assert self._answer is not None
        if not self._chunked.feed(data):
            return None
        if self._chunked.rest:
            self._answer.keep = False
        body = self._answer.body = bytes(self._chunked.data)
        head = self._answer.header("inference-header-content-length")
        if head.isdigit() and int(head) <= len(body):
            self._answer.json_length = int(head)
        return self._answer


class _Chunks:
    """A chunked body, which has no Content-Length."""

    def __init__(self, limit: int, *, until_end: bool = False) -> None:
        self.until_end = until_end
        self.data = bytearray()
        self.rest = bytearray()
        self._limit = limit
        self._left = 0  # missing bytes of the chunk, and two for its end
        self._trailer = False

    def feed(self, data: memoryview) -> bool:
        """Process bytes; return whether the body is complete."""
        if self.until_end:
            self.data += data
            self._check(0)
            return False
        self.rest += data
        while True:
            if self._left > 2:
                taken = self.rest[: self._left - 2]
                self.data += taken
                del self.rest[: len(taken)]
                self._left -= len(taken)
            if self._left > 2 or len(self.rest) < self._left:
                return False
            if self._left and self.rest[:2] != b"\r\n":
                raise _no_http(self.rest)
            del self.rest[: self._left]
            self._left = 0
            line, end, _ = self.rest.partition(b"\r\n")
            if not end:
                if len(self.rest) > _ROOM:
                    raise _no_http(self.rest)
                return False
            del self.rest[: len(line) + 2]
            if self._trailer:
                if not line:
                    return True
                continue
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                raise _no_http(line) from None
            self._check(size)
            self._trailer = size == 0
            self._left = size + 2 if size else 0

    def _check(self, more: int) -> None:
        if more < 0 or len(self.data) + more > self._limit:
            raise ServerError(
                f"the answer has more bytes than max_answer ({self._limit})"
            )


def _no_http(data: bytes | bytearray) -> ServerError:
    return ServerError(f"the answer is not HTTP: {bytes(data[:40])!r}", sent=True)


def _status(head: bytes) -> int:
    text = head[9:12]
    if not (head.startswith(b"HTTP/1.") and text.isdigit()):
        raise _no_http(head)
    return int(text)


def _value(head: bytes, lower: bytes, name: bytes) -> bytes:
    at = lower.find(b"\r\n" + name + b":")
    if at < 0:
        return b""
    at += len(name) + 3
    end = head.find(b"\r\n", at)
    return head[at : end if end >= 0 else len(head)].strip()


def _number(head: bytes, lower: bytes, name: bytes) -> int:
    """Return a header that is a number; -1 if it is missing."""
    text = _value(head, lower, name)
    if not text:
        return -1
    if not text.isdigit():
        raise ServerError(f"the answer's {name.decode()} is {text[:40]!r}", sent=True)
    return int(text)


def request_head(
    method: str, target: str, host: str, headers: Iterable[tuple[str, str]], size: int
) -> bytes:
    """Return the head of a request with a body of `size` bytes (GET: without one)."""
    lines = [f"{method} {target} HTTP/1.1"]
    if not any(name.lower() == "host" for name, _ in headers):
        lines.append(f"Host: {host}")
    lines += [f"{name}: {value}" for name, value in headers]
    if method != "GET":
        lines.append(f"Content-Length: {size}")
    try:
        return "\r\n".join([*lines, "", ""]).encode("latin-1")
    except UnicodeEncodeError:
        raise InvalidRequest("headers may contain only characters of Latin-1") from None


def check_headers(headers: Iterable[tuple[str, str]]) -> None:
    """Raise `InvalidRequest` for a value that would break out of its header."""
    for name, value in headers:
        if not name or not name.isascii() or set(name) & set(" \r\n\t:\0"):
            raise InvalidRequest(f"invalid name of a header: {name!r}")
        if set(value) & set("\r\n\0"):
            raise InvalidRequest(f"invalid value of the header {name}: {value!r}")
