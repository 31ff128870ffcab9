"""`Framer`: where an HTTP/1.1 message ends. Bytes in; heads, bodies and ends out.

Only this file knows where a message ends, and it knows nothing else. It has no
transport, no event loop and no clock.

llhttp (httptools) reads heads and chunks. It reports the end of a message only after it
has also read the bytes behind that end. So the framer feeds it in pieces, and no piece
contains the end of one message and the beginning of another:

- A head ends with the first empty line, a chunked body with an empty line. llhttp
  accepts CRLF only, so a piece ends behind the first `CRLF CRLF`.
- A body with a length is a piece of its own, and no longer than the length says.
- A large body with a length needs no parser, which would copy it. The framer counts its
  bytes. A new parser reads the following bytes.

The table `_NEXT` has the states and the events between them. Any error leads to
`BROKEN`. There, and behind the last message, bytes are dropped.

`python -m bench.fuzzers.framer` compares the framer with llhttp alone and with h11.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import httptools

from app.codec.messages import Header
from app.errors import HttpError
from engine import Buffer

#: No byte of a message has arrived.
IDLE: Final = 0
#: The last message has ended, because its client asked to close the connection.
LAST: Final = 1
#: A head is arriving.
HEAD: Final = 2
#: A body with a length is arriving, through the parser.
SIZED: Final = 3
#: A body with a length is arriving, past the parser.
PAST: Final = 4
#: A chunked body, or its trailers, are arriving.
CHUNKED: Final = 5
#: The bytes are not an HTTP/1.1 message that this server reads.
BROKEN: Final = 6

_NAMES: Final = (
    "idle",
    "behind the last message",
    "head",
    "sized body",
    "large body",
    "chunked body",
    "broken",
)

# Events that change the state. A first byte begins a message. A head announces a
# length, a large length or chunks, or asks for another protocol. A message ends, or the
# last one does.
_BEGIN: Final = 0
_LENGTH: Final = 1
_LARGE: Final = 2
_CHUNKS: Final = 3
_DECLINE: Final = 4
_END: Final = 5
_LAST_END: Final = 6

_NEXT: Final = {
    (IDLE, _BEGIN): HEAD,
    (HEAD, _LENGTH): SIZED,
    (HEAD, _LARGE): PAST,
    (HEAD, _CHUNKS): CHUNKED,
    (HEAD, _END): IDLE,
    (HEAD, _LAST_END): LAST,
    (SIZED, _DECLINE): PAST,
    (SIZED, _END): IDLE,
    (SIZED, _LAST_END): LAST,
    (PAST, _END): IDLE,
    (PAST, _LAST_END): LAST,
    (CHUNKED, _END): IDLE,
    (CHUNKED, _LAST_END): LAST,
}

#: The most bytes of a head, or of the lines between and behind chunks.
MOST_HEAD: Final = 64 * 1024
MOST_URL: Final = 16 * 1024
#: The most header lines of a message, including its trailers.
MOST_HEADERS: Final = 256
#: A body of this length or more bypasses the parser.
PAST_FROM: Final = 64 * 1024
# Bytes of a piece of a head or of a chunked body. Pieces are large if the chunks are.
_PIECE: Final = 4 * 1024
_LARGE_PIECE: Final = 16 * 1024
#: A parser callback costs as much time as parsing this many bytes.
CALL: Final = 256

_EMPTY_LINE: Final = b"\r\n\r\n"
# These headers ask for another protocol. This server never changes protocols.
_UPGRADES: Final = (b"upgrade", b"http2-settings")
# A parser that has read this head reads a body in chunks.
_CHUNKED_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


class Head(NamedTuple):
    """The head of a request.

    `target` is its path with the query, also if the client sent an absolute URL. Header
    names are in lower case. `length` is the Content-Length, -1 if there is none.
    """

    method: bytes
    target: bytes
    version: str
    headers: list[Header]
    keep_alive: bool
    length: int


class Framer:
    """The messages of one connection, in the order of their arrival.

    `feed` reads one piece. Afterwards `head` is the head that this piece completed,
    `body` is the part of the body in it, and `has_ended` is true if the message ends
    with it. All three belong to the same message. `error` is set if the input could not
    be parsed. It is an `HttpError` unless the fault is PopGate's.
    """

    __slots__ = (
        "_count",
        "_declines",
        "_last",
        "_lines",
        "_missing",
        "_parser",
        "_piece",
        "_tail",
        "_unused",
        "_url",
        "arrived",
        "begun",
        "body",
        "chunks",
        "error",
        "has_ended",
        "head",
        "state",
    )

    def __init__(self) -> None:
        self.state = IDLE
        self.head: Head | None = None
        self.body: list[Buffer] = []
        self.has_ended = False
        self.error: BaseException | None = None
        #: The bytes of all bodies received so far.
        self.arrived = 0
        #: The number of messages that have begun.
        self.begun = 0
        #: The number of pieces received of this message's body.
        self.chunks = 0
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = b""
        self._lines: list[Header] = []
        self._last: Head | None = None
        # The number of header lines of this message, and of bytes read since the last
        # event.
        self._count = 0
        self._unused = 0
        self._missing = 0
        self._piece = _PIECE
        # The last bytes read, if an empty line may continue behind them.
        self._tail = b""
        self._declines = False

    def feed(self, data: bytes, at: int) -> int:
        """Read a piece of `data` from offset `at`, and return the offset of its end."""
        self.head = None
        self.has_ended = False
        if self.body:
            self.body = []
        if self.state == PAST:
            return self._count_past(data, at)
        if self.state == BROKEN or self.state == LAST:
            return len(data)
        end = self._end_of_piece(data, at)
        self._unused += end - at
        try:
            self._parser.feed_data(data[at:end])
        except httptools.HttpParserUpgrade as upgrade:
            end = at + int(upgrade.args[0])
            self._decline()
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ or error)
        except httptools.HttpParserError as error:
            self._fail(bad_http(str(error)))
        else:
            if self._unused > MOST_HEAD or self._count > MOST_HEADERS:
                self._fail(_too_long("head"))
        if self.has_ended:
            self._piece = _PIECE
        else:
            calls = 1 + len(self.body)
            self._piece = _PIECE if calls > _PIECE // CALL else _LARGE_PIECE
        return end

    def _end_of_piece(self, data: bytes, at: int) -> int:
        """Return the end of the next piece for the parser, which begins at `data[at:]`.

        The piece ends where the message may end, or at the size of one parser call.
        """
        size = len(data)
        if self.state == SIZED:
            return min(at + self._missing, size)
        tail = self._tail
        if tail:
            seam = (tail + data[at : at + 3]).find(_EMPTY_LINE)
            if seam >= 0:
                self._tail = b""
                return at + seam + len(_EMPTY_LINE) - len(tail)
        last = min(at + self._piece, size)
        end = data.find(_EMPTY_LINE, at, last)
        if end < 0:
            self._tail = (tail + data[max(at, last - 3) : last])[-3:]
            return last
        self._tail = b""
        return end + len(_EMPTY_LINE)

    def _count_past(self, data: bytes, at: int) -> int:
        """Take bytes of a body without the parser."""
        end = min(at + self._missing, len(data))
        whole = at == 0 and end == len(data)
        self.body.append(data if whole else memoryview(data)[at:end])
        self.arrived += end - at
        self.chunks += 1
        self._missing -= end - at
        if not self._missing:
            self._parser = httptools.HttpRequestParser(self)
            self._end()
        return end

    def _decline(self) -> None:
        """Continue after a head that requests another protocol, and ignore
        the request.
        """
        self._declines = False
        self._parser = httptools.HttpRequestParser(self)
        if self.state == SIZED:
            self._go(_DECLINE)
        elif self.state == CHUNKED:
            self._parser.feed_data(_CHUNKED_HEAD)
        elif self.state == HEAD:
            self._end()

    def _go(self, event: int) -> None:
        self.state = _NEXT[self.state, event]

    def _end(self) -> None:
        head = self._last
        is_last = head is not None and not head.keep_alive
        self._go(_LAST_END if is_last else _END)
        self.has_ended = True

    def _fail(self, error: BaseException) -> None:
        self.state = BROKEN
        self.head = None
        self.has_ended = False
        self.error = error

    def so_far(self) -> Head | None:
        """Return the known part of the head of the current message, or of the message
        that could not be parsed.

        Return None if its URL has not arrived.
        """
        if self.state < HEAD:
            return None
        if self._last is not None:
            return self._last
        if not self._url:
            return None
        method = self._parser.get_method()
        return Head(method, self._url, "1.1", self._lines, False, -1)

    def close(self) -> None:
        """Release the parser and an error's traceback, which refer to the framer."""
        self._parser = None
        self.error = None

    # -- the parser's callbacks

    def on_message_begin(self) -> None:
        # `_decline` has fed the parser a head of its own.
        if self.state == CHUNKED:
            return
        if self.has_ended:
            raise RuntimeError("two messages in one piece")
        self._go(_BEGIN)
        self.begun += 1
        self._last = None
        self._url = b""
        self._lines = []
        self._count = 0
        self.chunks = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count += 1
        if self.state != HEAD:  # a trailer never counts as a header
            return
        if value[-1:] <= b" ":  # white space around a value is not part of it
            value = value.rstrip(b" \t")
        self._lines.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        # `_decline` has fed the parser a head of its own.
        if self.state == CHUNKED:
            return
        if self._unused > MOST_HEAD or self._count > MOST_HEADERS:
            raise _too_long("head")
        self._unused = 0
        parser = self._parser
        method: bytes = parser.get_method()
        lines = self._lines
        if parser.should_upgrade():
            if method == b"CONNECT":
                raise _no_proxy()
            self._declines = True
            lines = _without_upgrade(lines)
        url = self._url
        if len(url) > MOST_URL:
            raise _too_long("URL")
        if url[:1] != b"/":
            url = _origin_form(url)
        version: str = parser.get_http_version()
        length = _check(version, lines)
        keep_alive = version == "1.1" and bool(parser.should_keep_alive())
        self.head = self._last = Head(method, url, version, lines, keep_alive, length)
        if length >= PAST_FROM:
            self._missing = length
            self._go(_LARGE)
        elif length > 0:
            self._missing = length
            self._go(_LENGTH)
        elif length == _IN_CHUNKS:
            self.head = self._last = self.head._replace(length=-1)
            self._go(_CHUNKS)

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        self.arrived += len(body)
        self.chunks += 1
        if self.state == SIZED:
            self._missing -= len(body)
        self.body.append(body)

    def on_message_complete(self) -> None:
        if not self._declines:
            self._end()

    def __repr__(self) -> str:
        return f"<Framer {_NAMES[self.state]}>"


# Stands for the length of a chunked body.
_IN_CHUNKS: Final = -2
# The digits of the largest length that the parser reads.
_MOST_DIGITS: Final = 20


def _check(version: str, lines: list[Header]) -> int:
    """Return the stated length of a body: -1 if there is none, `_IN_CHUNKS` if it comes
    in chunks.

    Raises for heads that two servers might read differently. The parser has checked
    that a length is a number and occurs once.
    """
    if version not in ("1.1", "1.0"):
        msg = f"HTTP/{version} is not supported; expected HTTP/1.1 or HTTP/1.0"
        raise HttpError(505, msg, "http_version_not_supported")
    length = -1
    has_host = version == "1.0"
    for name, value in lines:
        if name == b"host":
            has_host = True
        elif name == b"content-length":
            # The parser checks the number, but not how many zeros it begins with.
            if len(value) > _MOST_DIGITS:
                raise bad_http(f"Content-Length has more than {_MOST_DIGITS} digits")
            length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                coding = value[:40].decode("latin-1")
                msg = (
                    f"transfer encoding {coding!r} is not supported; expected 'chunked'"
                )
                raise HttpError(501, msg, "unsupported")
            length = _IN_CHUNKS
    if not has_host:
        raise bad_http("the header Host is missing")
    return length


def _without_upgrade(lines: list[Header]) -> list[Header]:
    """Return the lines of a head without those that request another protocol."""
    kept: list[Header] = []
    for name, value in lines:
        if name == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            value = b", ".join(t for t in tokens if t.lower() not in _UPGRADES)
            if not value:
                continue
        if name not in _UPGRADES:
            kept.append((name, value))
    return kept


def _origin_form(url: bytes) -> bytes:
    """Return the path and query of an absolute URL; return other URLs unchanged."""
    try:
        # Declared as Any: its types do not say that a path may be missing, and compiled
        # code checks.
        parsed: Any = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        raise bad_http("") from None
    path: bytes = parsed.path or b"/"
    return path if parsed.query is None else b"%b?%b" % (path, parsed.query)


def bad_http(why: str) -> HttpError:
    """Return the answer to input that is not HTTP/1.1."""
    msg = "the request is not valid HTTP/1.1"
    return HttpError(400, f"{msg}: {why}" if why else msg, "bad_http")


def _no_proxy() -> HttpError:
    allow = ((b"allow", b"GET, POST"),)
    msg = "Method Not Allowed: this server is not a proxy"
    return HttpError(405, msg, "method_not_allowed", allow)


def _too_long(what: str) -> HttpError:
    if what == "URL":
        msg = f"the URL has more than {MOST_URL} bytes"
        return HttpError(414, msg, "url_too_long")
    most = f"{MOST_HEAD} bytes, or than {MOST_HEADERS} headers"
    msg = f"the head of the request has more than {most}"
    return HttpError(431, msg, "head_too_long")
