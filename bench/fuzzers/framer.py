"""Compare the framer of connections with llhttp alone and with h11, on random requests.

    python -m bench.fuzzers.framer --cases 1000000
    python -m bench.fuzzers.framer --cases 1 --seed 4711     # one of them again

Each case is a stream: some requests, valid or nearly so, then damaged in a few places.
The framer reads it as a whole and cut into random pieces, and has to find the same
messages in both. llhttp alone reads it as a whole, and has to find them too. h11, which
shares no code with llhttp, may differ where `DIFFERENCES` says so. Exit code 1 if
anything else was found: the seed of each such case is printed.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import h11
import httptools

from app.errors import HttpError
from app.http.connection.framing import Framer, Head
from bench.fuzzers.cases import run_cases

#: Why the framer and another reader may find different messages.
DIFFERENCES: Final = {
    "upgrade": "llhttp ends at a head that asks for another protocol; the framer reads "
    "on, as llhttp does if the head asks for nothing",
    "close in a trailer": "llhttp reads nothing behind a message whose trailer says "
    "Connection: close; for the framer a trailer is no header, so it reads on",
    "h11 is stricter": "h11 refuses what llhttp accepts: Host twice or with HTTP/1.0, "
    "a header that goes on in the next line, other characters in a URL",
    "h11 is laxer": "h11 accepts what llhttp refuses: lines that end in LF alone, "
    "unknown methods, spaces behind the length of a chunk; and heads that "
    "this server refuses: CONNECT, other versions, URLs that are none",
}


class Message(NamedTuple):
    """One request. `is_whole`: its end has arrived."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    is_whole: bool


@dataclass
class Found:
    """The messages that a reader finds in a stream, and whether it refuses the rest."""

    messages: list[Message] = field(default_factory=list)
    error: str = ""

    @property
    def whole(self) -> list[Message]:
        return [message for message in self.messages if message.is_whole]


def by_framer(stream: bytes, cuts: Iterable[int] = ()) -> Found:
    """Read a stream in pieces, cut at these places (ascending).

    Raises AssertionError if the framer breaks a promise of its own.
    """
    framer = Framer()
    found = Found()
    head: Head | None = None
    body = bytearray()
    begin = 0
    for end in (*cuts, len(stream)):
        data, at = stream[begin:end], 0
        begin = end
        while at < len(data):
            before = framer.arrived
            now = framer.feed(data, at)
            assert at < now <= len(data), (at, now, len(data))
            at = now
            if framer.error is not None:
                assert isinstance(framer.error, HttpError), framer.error
                assert framer.head is None
                assert not framer.has_ended
                found.error = framer.error.code
            if framer.head is not None:
                assert head is None
                head = framer.head
            brought = sum(map(len, framer.body))
            assert framer.arrived - before == brought
            assert not brought or head is not None
            body += b"".join(framer.body)
            if framer.has_ended:
                assert head is not None
                found.messages.append(_message(head, bytes(body), True))
                head, body = None, bytearray()
            if found.error:
                break
        if found.error:
            break
    if head is not None:
        found.messages.append(_message(head, bytes(body), False))
    framer.close()
    return found


def _message(head: Head, body: bytes, is_whole: bool) -> Message:
    return Message(head.method, head.target, tuple(head.headers), body, is_whole)


class _Llhttp:
    """llhttp's callbacks. Only heads that this server does not support are filtered."""

    def __init__(self) -> None:
        self.found = Found()
        self.is_upgrade = False
        self.is_closed_by_trailer = False
        self._parser: Any = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()
        self._is_in_body = False
        self._has_tab = False
        # By HTTP/1.0, after which this server closes the connection.
        self._is_last = False

    def read(self, stream: bytes) -> Found:
        try:
            self._parser.feed_data(stream)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            if not self._is_last:
                self.found.error = "refused"
        if self._is_in_body:
            self._add(False)
        return self.found

    def _add(self, is_whole: bool) -> None:
        headers, body = tuple(self._headers), bytes(self._body)
        method = self._parser.get_method()
        self.found.messages.append(
            Message(method, _path(self._url), headers, body, is_whole)
        )
        self._is_in_body = False

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", [], bytearray()
        self._has_tab = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:
            is_connection = name.lower() == b"connection"
            self.is_closed_by_trailer |= is_connection and b"close" in value.lower()
            return
        # llhttp refuses a tab behind the last coding only after the head: not here
        # either.
        if name.lower() == b"transfer-encoding":
            self._has_tab = value.endswith(b"\t")
        self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        version, named = self._parser.get_http_version(), dict(self._headers)
        assert self._parser.get_method() != b"CONNECT"
        assert not self._has_tab
        assert version in ("1.0", "1.1")
        assert version == "1.0" or b"host" in named
        codings = [v for n, v in self._headers if n == b"transfer-encoding"]
        assert all(coding.lower() == b"chunked" for coding in codings)
        assert _path(self._url)
        self._is_in_body = True
        self.is_upgrade = self._parser.should_upgrade()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._add(True)
        self._is_last = self._parser.get_http_version() == "1.0"
        assert self.is_upgrade or not self._is_last


def _path(target: bytes) -> bytes:
    """Return the path and query of a target; empty for an invalid absolute URL."""
    if target[:1] == b"/":
        return target
    try:
        url: Any = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        return b""
    query = b"" if url.query is None else b"?" + url.query
    return (url.path or b"/") + query


def by_h11(stream: bytes) -> Found:
    """Return the messages that h11 finds."""
    found = Found()
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(stream)
    request: h11.Request | None = None
    body = bytearray()
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request, body = event, bytearray()
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                found.messages.append(_of_h11(request, bytes(body), True))
                request = None
                if found.messages[-1].method == b"CONNECT":
                    break
                if connection.our_state is h11.SEND_RESPONSE:
                    answer = h11.Response(
                        status_code=200, headers=[("content-length", "0")]
                    )
                    connection.send(answer)
                    connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    break
                connection.start_next_cycle()
            else:  # h11 needs more, or the request asks for another protocol
                break
    except h11.RemoteProtocolError as error:
        found.error = str(error)
    if request is not None:
        found.messages.append(_of_h11(request, bytes(body), False))
    return found


def _of_h11(request: h11.Request, body: bytes, is_whole: bool) -> Message:
    headers = tuple((bytes(name), bytes(value)) for name, value in request.headers)
    target = _path(bytes(request.target))
    return Message(bytes(request.method), target, headers, body, is_whole)


# -- streams

_METHODS = (
    b"GET",
    b"POST",
    b"PUT",
    b"HEAD",
    b"OPTIONS",
    b"DELETE",
    b"PATCH",
    b"CONNECT",
)
_TARGETS = (
    b"/", b"/v1/models/m/infer", b"/v1/models/m/infer?a=b", b"*", b"http://x/y?z",
    b"/%61", b"http://x", b"/a#b", b"//", b"x:80",
)  # fmt: skip
_VERSIONS = (b"HTTP/1.1",) * 12 + (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1")
_HEADERS = (
    b"Host: x", b"Accept: */*", b"X-Empty:", b"X-Space:   y  ", b"Connection: close",
    b"Connection: keep-alive", b"Expect: 100-continue", b"Content-Type: text/plain",
    b"X-Long: " + b"y" * 300, b"Connection: Upgrade", b"Upgrade: h2c", b"Cookie: a=b",
    b"HTTP2-Settings: AAMAAABk",
)  # fmt: skip
_LENGTHS = (
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity", b"Transfer-Encoding:chunked ", b"Content-Length: 0",
    b"Content-Length: +5", b"Content-Length: -5", b"Content-Length: 5, 5",
    b"Content-Length: 0x5", b"Content-Length:", b"Content-Length: 99999999999999999999",
    b"content-length: 5", b"transfer-encoding: Chunked",
)  # fmt: skip
_PIECES = (
    b"\r\n", b"\r", b"\n", b"\r\n\r\n", b" ", b"\t", b"\0", b":", b"0", b"5", b"\xff",
    b"0\r\n\r\n", b"\r\n ", b"GET / HTTP/1.1\r\n", b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n", b";", b"\x7f", b"_", b"A", b"Host: y\r\n",
)  # fmt: skip


#: The longest stream (bytes) that is cut between all of its bytes.
_CUT_EVERYWHERE = 2048


def make(seed: int) -> tuple[bytes, list[int]]:
    """Return a stream, and the places of its cuts."""
    choose = random.Random(seed)
    stream = b"".join(
        _request(choose) for _ in range(choose.choice((1, 1, 2, 2, 3, 5)))
    )
    for _ in range(choose.choice((0, 0, 0, 1, 1, 2, 4))):
        stream = _damaged(choose, stream)
    return stream, _cuts(choose, len(stream))


def _cuts(choose: random.Random, size: int) -> list[int]:
    most = choose.choice((1, 1, 2, 2, 2, 4, 4, 4, 16, 0))
    if most == 0 and size <= _CUT_EVERYWHERE:
        return list(range(1, size))
    return sorted(int(choose.random() * (size + 1)) for _ in range(most or 64))


def _request(choose: random.Random) -> bytes:
    method = choose.choice(_METHODS[:6] if choose.random() < 0.95 else _METHODS)
    target = _TARGETS[1] if choose.random() < 0.6 else choose.choice(_TARGETS)
    lines = [b" ".join((method, target, choose.choice(_VERSIONS)))]
    headers = [b"Host: x"] if choose.random() < 0.93 else []
    headers += choose.choices(_HEADERS, k=choose.choice((0, 1, 1, 2, 4)))
    body = b""
    kind = choose.random()
    if kind < 0.4:
        body = _bytes(choose)
        headers.append(b"Content-Length: %d" % len(body))
    elif kind < 0.75:
        headers.append(b"Transfer-Encoding: chunked")
        body = _chunks(choose)
    if choose.random() < 0.08:
        headers.append(choose.choice(_LENGTHS))
        body = body or choose.choice((b"", b"hello", _chunks(choose)))
    choose.shuffle(headers)
    before = (
        b"" if choose.random() < 0.95 else choose.choice((b"\r\n", b"\r\n\r\n", b"\n"))
    )
    return before + b"\r\n".join((*lines, *headers, b"", b"")) + body


def _bytes(choose: random.Random) -> bytes:
    size = choose.choice((0, 1, 2, 3, 5, 17, 200))
    if choose.random() < 0.005:
        size = choose.choice((65_535, 65_536, 70_000, 140_000))
    made = choose.choice(
        (b"\r\n\r\n", b"a", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\r")
    )
    return (made * (size // len(made) + 1))[:size]


def _chunks(choose: random.Random) -> bytes:
    parts = []
    for _ in range(choose.choice((0, 1, 2, 3, 20))):
        data = _bytes(choose)
        if data:
            size = choose.choice((b"%x", b"%X", b"0%x", b"%x;a=b", b'%x;a="b"')) % len(
                data
            )
            parts += [size, b"\r\n", data, b"\r\n"]
    parts.append(choose.choice((b"0\r\n", b"0\r\n", b"00\r\n", b"0;x\r\n")))
    if choose.random() < 0.2:
        parts.append(choose.choice((b"T: u\r\n", b"Content-Length: 9\r\nA: b\r\n")))
    return b"".join((*parts, b"\r\n"))


def _damaged(choose: random.Random, stream: bytes) -> bytes:
    at = choose.randrange(len(stream) + 1)
    kind = choose.randrange(5)
    if kind == 0:
        return stream[:at] + choose.choice(_PIECES) + stream[at:]
    if kind == 1:
        return stream[:at] + stream[at + choose.choice((1, 1, 2, 5)) :]
    if kind == 2:
        return stream[:at]
    if kind == 3:
        return stream[:at] + bytes((choose.randrange(256),)) + stream[at + 1 :]
    other = choose.randrange(len(stream) + 1)
    return stream[:at] + stream[other : other + 12] + stream[at:]


# -- the comparison


def check(seed: int) -> tuple[str, str]:
    """Return the name of a case's difference, and its fault; both empty if all readers
    agree.
    """
    stream, cuts = make(seed)
    try:
        found = by_framer(stream)
        in_pieces = by_framer(stream, cuts)
    except AssertionError as broken:
        return "", f"a promise is broken: {broken}"
    if found != in_pieces:
        return "", f"cut at {cuts} it finds {in_pieces}, else {found}"
    reader = _Llhttp()
    alone = reader.read(stream)
    if reader.is_upgrade:
        return "upgrade", _beside_no_upgrade(found, stream)
    if found.messages != alone.messages or bool(found.error) != bool(alone.error):
        same = found.messages[: len(alone.messages)] == alone.messages
        if reader.is_closed_by_trailer and same and not alone.error:
            return "close in a trailer", ""
        return "", f"it finds {found}, llhttp {alone}"
    return _beside_h11(_lowered(found), by_h11(stream).whole), ""


def _beside_no_upgrade(found: Found, stream: bytes) -> str:
    """Return what differs from the same stream without its Upgrade headers."""
    other = _Llhttp().read(re.sub(rb"(?i)upgrade", b"xpgrade", stream))
    ours, theirs = (
        [(m.method, m.target, len(m.body), m.is_whole) for m in each.messages]
        for each in (found, other)
    )
    if ours == theirs and bool(found.error) == bool(other.error):
        return ""
    return f"it finds {found}, llhttp without upgrade {other}"


def _lowered(found: Found) -> list[Message]:
    """Return whole messages in h11's form, with the coding in lower case."""
    coding = b"transfer-encoding"
    return [
        message._replace(
            headers=tuple(
                (name, value.lower() if name == coding else value)
                for name, value in message.headers
            )
        )
        for message in found.whole
    ]


def _beside_h11(ours: list[Message], theirs: list[Message]) -> str:
    same = min(len(ours), len(theirs))
    if ours[:same] != theirs[:same]:
        return "h11 reads another message"
    if len(ours) == len(theirs):
        return ""
    return "h11 is stricter" if len(theirs) < len(ours) else "h11 is laxer"


def main(arguments: Sequence[str] | None = None) -> int:
    name = "bench.fuzzers.framer"
    return run_cases(name, __doc__, _explained, make, arguments, DIFFERENCES)


def _explained(seed: int) -> tuple[str, str]:
    """Return the outcome of a case as `run_cases` expects it. A difference that is not
    listed is wrong.
    """
    known, why = check(seed)
    if not why and known not in ("", *DIFFERENCES):
        why = f"a difference that is not listed: {known}"
    return known or "all readers agree", why


if __name__ == "__main__":
    sys.exit(main())
