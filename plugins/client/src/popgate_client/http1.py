"""HTTP/1.1 as a client reads it, without input or output.

httptools parses the answers. A connection asks for memory, receives the next bytes into
it, and reports their number. Large bodies arrive where their arrays will be, so nothing
is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import httptools
import numpy as np

from popgate_client.errors import ConnectionFailed, InvalidRequest, ServerError

_ROOM = 1 << 16  # bytes for the head of an answer, and the first part of its body
#: Arrays in an answer begin at a multiple of this, in bytes.
_ALIGNMENT = 16


class Answer:
    """One answer. `json_length`: how much of the body is the document, -1 for all."""

    __slots__ = ("_headers", "body", "json_length", "keep", "status")

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
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
        return self._headers.get(name, "")


def document_size(headers: Mapping[str, str], body: int) -> int:
    """Return the bytes of the document in front of binary tensors; -1 if the headers do
    not say it, or more than the bytes of the body.
    """
    text = headers.get("inference-header-content-length", "")
    is_number = text.isdecimal() and len(text) <= len(str(body))
    return int(text) if is_number and int(text) <= body else -1


class AnswerReader:
    """Reads one answer after the other from a connection. Not thread-safe.

    Raises `ServerError` for answers that are not HTTP or larger than `limit` bytes.
    """

    __slots__ = ("_body", "_filled", "_limit", "_message", "_view")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._view = memoryview(bytearray(_ROOM))
        self.reset()

    def reset(self) -> None:
        """Prepare for the next answer."""
        self._filled = 0
        self._message = _Message(self._limit)
        self._body: memoryview | None = None

    @property
    def begun(self) -> bool:
        """Return whether a byte of the answer has arrived."""
        return self._filled > 0

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes. It is never empty, as event loops also
        ask for it when the answer is complete and the server closes the connection.
        """
        body = self._body
        if body is None or self._filled == len(body):
            return self._view
        return body[self._filled :]

    def received(self, count: int) -> Answer | None:
        """Return the answer if the `count` received bytes complete it."""
        self._filled += count
        message = self._message
        if self._body is None:
            message.feed(self._view[:count])
            if message.complete:
                return message.answer()
            if message.body is None:
                if message.until_end is None and self._filled >= _ROOM:
                    raise ServerError(f"the answer's head is longer than {_ROOM} bytes")
                return None
            # The other bytes are the body's, and go where it lies, past the parser.
            self._body, self._filled = message.body, message.filled
        return message.answer() if self._filled == len(self._body) else None

    def ended(self) -> Answer:
        """Return the answer that ends with the connection. Raises `ConnectionFailed` if
        the answer is incomplete or missing.
        """
        if self._message.until_end:
            return self._message.answer()
        if not self.begun:
            msg = "the server closed the connection without an answer"
        else:
            msg = "the connection ended in the middle of the answer"
        raise ConnectionFailed(msg, sent=True)


class _Message:
    """The message of one answer, as httptools finds it. httptools calls the methods.

    `body` is the memory of a body that has a Content-Length, of which `filled` bytes
    are there. `until_end` is None until the head is complete.
    """

    __slots__ = (
        "_error", "_headers", "_limit", "_parser", "_pieces", "_status", "body",
        "complete", "filled", "keep", "until_end",
    )  # fmt: skip

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parser = httptools.HttpResponseParser(self)
        self._error: ServerError | None = None
        self._headers: dict[str, str] = {}
        self._pieces = bytearray()
        self._status = 0
        self.body: memoryview | None = None
        self.filled = 0
        self.complete = False
        self.keep = False
        self.until_end: bool | None = None

    def feed(self, data: memoryview) -> None:
        """Process bytes. Raises `ServerError`."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            # An error behind the answer is one of bytes that belong to no request.
            self.keep = False
            if self._error is None and not self.complete:
                msg = f"the answer is not HTTP: {bytes(data[:40])!r}"
                raise ServerError(msg, sent=True) from None
        if self._error is not None:
            raise self._error

    def answer(self) -> Answer:
        """Return the answer, once."""
        del self._parser  # its circle with this object is not left to the collector
        body = memoryview(self._pieces) if self.body is None else self.body
        size = document_size(self._headers, len(body))
        return Answer(
            self._status, self._headers, body, json_length=size, keep=self.keep
        )

    def on_message_begin(self) -> None:
        if self.complete:
            self.keep = False  # bytes after the answer belong to no request

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.until_end is None:  # else a trailer
            found = name.decode("latin-1").lower()
            self._headers.setdefault(found, value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self._status = self._parser.get_status_code()
        self.keep = self._parser.should_keep_alive()
        size = self._headers.get("content-length")
        if self._status < 200 or self._status in {204, 304}:
            self.until_end = False
        elif size is None:
            codings = self._headers.get("transfer-encoding", "")
            self.until_end = not codings.lower().endswith("chunked")
        elif int(size) > self._limit:
            self._error = ServerError(
                f"the answer has {size} bytes, more than max_answer ({self._limit})",
                status=self._status,
            )
        else:
            self.until_end = False
            pad = -max(0, document_size(self._headers, int(size))) % _ALIGNMENT
            self.body = np.empty(pad + int(size), np.uint8).data[pad:]

    def on_body(self, data: bytes) -> None:
        if self.complete or self._error is not None:
            return
        if self.body is not None:
            self.body[self.filled : self.filled + len(data)] = data
            self.filled += len(data)
            return
        self._pieces += data
        if len(self._pieces) > self._limit:
            self._error = ServerError(
                f"the answer has more bytes than max_answer ({self._limit})"
            )

    def on_message_complete(self) -> None:
        if self.complete:
            return
        if self._status < 200:  # an interim answer: another head follows
            self._headers, self.until_end = {}, None
            return
        self.complete = True


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
    """Raise `InvalidRequest` for a value that would break out of its header. The error
    does not show the value, which may be a key.
    """
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, str):
            msg = f"names and values of headers must be strings: {name!r}"
            raise InvalidRequest(msg)
        if not name or not name.isascii() or set(name) & set(" \r\n\t:\0"):
            raise InvalidRequest(f"invalid name of a header: {name!r}")
        if set(value) & set("\r\n\0"):
            msg = f"the value of the header {name} has a line break or a zero byte"
            raise InvalidRequest(msg)
