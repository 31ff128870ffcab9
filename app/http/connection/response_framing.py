"""`ResponseFramer`: turns the messages of an application into the bytes of
an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from app.codec.messages import Header
from engine import Buffer


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


STATUS_LINE: Final = {status: _status_line(status) for status in range(100, 600)}
#: Says that an answer is the last one of its connection.
CLOSE_HEADER: Final = (b"connection", b"close")

_not_in_name: Final = re.compile(rb'[\x00-\x20\x7f()<>@,;:\[\]={}\\"]').search
_not_in_value: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search
# Answers with these statuses have no body.
_WITHOUT_BODY: Final = (204, 304)


class ResponseFramer:
    """One answer. `is_to_head` is true for a HEAD request, whose answer has no body.
    `knows_chunks` is false for a client of HTTP/1.0: if the length of its answer is not
    known, the answer ends with the connection.

    Raises `RuntimeError` if the application breaks the rules of HTTP.
    """

    __slots__ = ("_is_chunked", "_is_to_head", "_knows_chunks", "_left", "keep_alive")

    def __init__(
        self, keep_alive: bool, is_to_head: bool, knows_chunks: bool = True
    ) -> None:
        #: Whether the connection can continue after the answer. Its headers also
        #: decide.
        self.keep_alive = keep_alive
        self._is_to_head = is_to_head
        self._knows_chunks = knows_chunks
        self._is_chunked = False
        self._left = 0

    def head(self, status: int, headers: Iterable[Header]) -> bytes:
        lines = [STATUS_LINE[status]]
        says_length = says_close = False
        for name, value in headers:
            if _not_in_name(name):
                raise RuntimeError(f"invalid name of a header: {name!r}")
            if _not_in_value(value):
                raise RuntimeError(f"invalid value of the header {name!r}: {value!r}")
            name = name.lower()
            if name == b"content-length" and not says_length:
                self._left = int(value)
                says_length = True
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self._left = 0
                self._is_chunked = says_length = True
                if not self._knows_chunks:
                    continue
            elif name == b"connection":
                tokens = [token.strip() for token in value.lower().split(b",")]
                says_close |= b"close" in tokens
            lines += (name, b": ", value, b"\r\n")
        if says_close:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if not (says_length or self._is_to_head or status in _WITHOUT_BODY):
            self._is_chunked = True
            if self._knows_chunks:
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def body(self, part: Buffer, more: bool) -> Buffer:
        """Return the bytes of a part of the body; `more` is true if other
        parts follow.
        """
        if self._is_to_head:
            self._left = 0
            return b""
        if self._is_chunked:
            if not self._knows_chunks:
                return part
            pieces = [b"%x\r\n" % len(part), part, b"\r\n"] if part else []
            if not more:
                pieces.append(b"0\r\n\r\n")
            return b"".join(pieces)
        self._left -= len(part)
        if self._left < 0:
            raise RuntimeError("the body is longer than its Content-Length")
        if self._left and not more:
            raise RuntimeError("the body is shorter than its Content-Length")
        return part

    def __repr__(self) -> str:
        how = "in chunks" if self._is_chunked else f"{self._left} bytes left"
        return f"<ResponseFramer {how}>"
