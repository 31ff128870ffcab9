"""TLS handshakes that tell the client why they fail.

If a handshake fails, the event loop drops the connection, and with it the alert that
gives the reason. So a failed handshake pretends to need more bytes from the client, and
the loop sends the alert. The client then closes the connection. If it does not, the
handshake timeout does.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from app.errors import error_body

PROTOCOL: Final = "http/1.1"
#: A TLS record: the server speaks none of the offered protocols (RFC 7301).
_NO_PROTOCOL: Final = bytes((21, 3, 3, 0, 2, 2, 120))
_BODY: Final = error_body(
    "this port accepts HTTPS only: use https:// in the URL", "bad_http"
)
_PLAIN: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
# Sizes of two heads. A record's head is its type, version and length. A message's head
# is its type and length.
_RECORD: Final = 5
_MESSAGE: Final = 4
_IS_HANDSHAKE, _IS_HELLO, _IS_ALPN = 22, 1, 16
#: The most bytes read from a refused client. If the connection closed with unread
#: bytes, the client would not receive the reason.
_MOST_DROPPED: Final = 1 << 20
_IS_LETTER: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Handshake(ssl.SSLObject):
    """One connection's TLS, with the buffers of the event loop on both of its sides."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    _seen: bytes | None = b""
    _failed: Exception | None = None
    _dropped = 0

    def do_handshake(self) -> None:
        """Do the handshake of `ssl`, and delay the error of a failed one.

        The error is raised if the client keeps sending.
        """
        if self._failed is not None:
            self._dropped += len(self.incoming.read())
            if self._dropped > _MOST_DROPPED:
                raise self._failed
            raise ssl.SSLWantReadError
        refusal = self._look()
        if refusal:
            self._fail(ssl.SSLError("refused before the handshake"), refusal)
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLSyscallError):
            raise
        except ssl.SSLError as error:
            self._fail(error)

    def _fail(self, error: ssl.SSLError, said: bytes = b"") -> None:
        self._failed = error
        if said:
            self.outgoing.write(said)
        if not self.outgoing.pending:
            raise error
        raise ssl.SSLWantReadError

    def _look(self) -> bytes:
        """Return the answer in place of a handshake; empty if a handshake is possible.

        Checks all bytes that arrive until the first record is complete.
        """
        seen = self._seen
        if seen is None or not self.incoming.pending:
            return b""
        came = self.incoming.read()
        self.incoming.write(came)
        self._seen = seen = seen + came
        if seen[0] in _IS_LETTER:
            return _PLAIN
        if len(seen) < _RECORD:
            return b""
        size = _RECORD + int.from_bytes(seen[3:5], "big")
        if seen[0] == _IS_HANDSHAKE and len(seen) < size:
            return b""
        self._seen = None
        offered = offered_protocols(seen[:size])
        return _NO_PROTOCOL if offered and PROTOCOL.encode() not in offered else b""


class ServerContext(ssl.SSLContext):
    """A context for servers of HTTP/1.1 over TLS 1.2 and later."""

    sslobject_class = Handshake

    def __new__(cls) -> ServerContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self) -> None:
        self.minimum_version = ssl.TLSVersion.TLSv1_2
        # For TLS 1.2: ciphers with forward secrecy, none of which pads blocks.
        self.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM")
        self.set_alpn_protocols([PROTOCOL])

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *rest: Any, **more: Any
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *rest, **more)
        if isinstance(made, Handshake):
            made.incoming, made.outgoing = incoming, outgoing
        return made


def offered_protocols(record: bytes) -> list[bytes]:
    """Return the protocols (ALPN) that a client offers in its first record.

    The result is empty if it offers none, or if the record is not a whole greeting.
    """
    if record[:1] != bytes((_IS_HANDSHAKE,)):
        return []
    try:
        return _offered(record[_RECORD:])
    except IndexError:
        return []


def _offered(message: bytes) -> list[bytes]:
    if message[0] != _IS_HELLO:
        return []
    at = _MESSAGE + 2 + 32  # version and random bytes
    at += 1 + message[at]  # the session
    at += 2 + _two(message, at)  # ciphers
    at += 1 + message[at]  # compression
    at += 2
    while at < len(message):
        kind, size = _two(message, at), _two(message, at + 2)
        if kind == _IS_ALPN:
            return _names(message[at + 4 + 2 : at + 4 + size])
        at += 4 + size
    return []


def _names(listed: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(listed):
        size = listed[at]
        found.append(listed[at + 1 : at + 1 + size])
        at += 1 + size
    return found


def _two(message: bytes, at: int) -> int:
    return message[at] << 8 | message[at + 1]
