"""uvicorn's HTTP protocol, with a short way for inference.

A request to a path of the model table whose body comes with a Content-Length is
answered right here: the parser's callbacks collect its body in chunks, the complete
body begins a `Call`, and its result is written to the connection from the
device's `poll`. There is no task, no future and no message in between, which halves
what a small request costs (bench/LOG.md). Everything else goes uvicorn's way, through
ASGI, including all that is unusual about an inference: no Content-Length, too long a
body, compression, an answer in events, Expect, HTTP/1.0.

To uvicorn an `Exchange` is the cycle of a request like its own, which it ends in an
orderly way.

One request of a connection is looked at at a time. What a client sends behind it waits
as bytes, few of which are read, until the answer has been handed on: answers keep their
order, also those to what is no HTTP, and a client that goes away leaves one run behind.
"""

from __future__ import annotations

import asyncio
import logging
import math
import select
from collections.abc import Mapping
from functools import partial
from time import monotonic_ns
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.codec.messages import Buffer, Header
from app.codec.model import DECODED_AT_ONCE
from app.errors import BodyStopped, ErrorResponse, HttpError, row_of
from app.http.access import key_group
from app.http.answer_watch import route_of
from app.http.asgi import BARE, BASE, CONNECTION
from app.http.connection_limit import ConnectionLimit, Entry
from app.http.exchange import CommonHead, Exchange
from app.http.floods import DROPPED, ENTRY, HANDSHAKE, READ, Floods
from app.http.front import NAMES, InferFront
from app.http.known_head import LARGEST_BODY, KnownHead
from app.http.stalls import Stall, acknowledged, is_all_taken
from app.http.streaming import wants_events
from app.http.tls import names_of
from app.http.turns import ReadBudget, Turns
from app.observe.journal import Asked, Failed
from app.observe.request_ids import id_of

logger = logging.getLogger(__name__)

# Of a request line with its headers, or of what stands between chunks and behind them.
_MOST_HEAD = 64 * 1024
_MOST_URL = 16 * 1024
_MOST_HEADERS = 256
# Of a message that the parser gets in one piece.
_MOST_AT_ONCE = 16 * 1024
# Of a head, or a body in chunks, that the parser gets in one piece, if the chunks are
# small and if not; and how much of it has one turn. A chunk, or a piece, takes as long
# as so many bytes.
_PIECE = 4 * 1024
_LARGE_PIECE = 16 * 1024
_IN_A_TURN = 64 * 1024
_CALL = 256
# What asks for another protocol, which is never spoken here.
_UPGRADES = (b"upgrade", b"http2-settings")
_VERSIONS = ("1.1", "1.0")
# Where a head, and a body in chunks, end; the parser lets no line end in another way.
_END = b"\r\n\r\n"
# Bytes that may wait behind a request; with so many, no more are read.
_MOST_BEHIND = 64 * 1024
# Seconds for which what a client still sends is read and dropped before its connection
# is closed: closing it with bytes unread takes the answer away from it.
_LINGER = 1.0
# Where at least so many bytes of a body are still to come, they go past the parser.
_PAST_THE_PARSER_FROM = 64 * 1024
# Requests in a row that were each unlike the one before: there is nothing to remember.
_UNLIKE = 8
# Seconds that connections may take which are let in beyond the limit.
_EXTRA_PATIENCE = 1.0


class Reading(FlowControl):
    """uvicorn's, which reads on whenever a request is answered, or waits for more."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.is_full = False

    def resume_reading(self) -> None:
        if not self.is_full:
            super().resume_reading()


class GatewayProtocol(HttpToolsProtocol):
    """One connection. `front` answers inference, and is the ASGI application."""

    def __init__(
        self,
        front: InferFront,
        common: CommonHead,
        turns: Turns,
        floods: Floods,
        limit: ConnectionLimit,
        budget: ReadBudget,
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        # The connections of one server may have different ones.
        self.app = self.front = front
        self._service = front.service
        self._access = front.access
        # Where requests can go the short way, if any can.
        self._short = {} if self.root_path else front.short
        self.common = common
        self._turns = turns
        self._floods = floods
        self._limit = limit
        self._budget = budget
        # Whether there were enough connections without this one, and of what.
        self._is_extra = False
        self._entry = Entry.FREE
        self._address = ""
        self._exchange: Exchange | None = None
        self._idle_since = self.loop.time()
        self._stall = Stall()
        self._send_stall = Stall()
        self._arrived = 0
        # Bytes that were parsed since something was made of them.
        self._unused = 0
        # Pieces of its body that the parser has given away; the most that it gets.
        self._chunks = 0
        self._piece = _PIECE
        self._declined = b""
        self._last_url = b""
        self._last_path = ""
        # The base path that was taken off the path of the last request, and whether
        # nothing was left.
        self.base = ""
        self._is_bare = False
        # Of the last request, where it came in one piece and the parser has seen
        # nothing behind it.
        self._known: KnownHead | None = None
        self._unlike = -1
        # The message that is being parsed: whether there is one, whether its head has
        # made a cycle, bytes of its body to come (where that has a length, and no
        # exchange counts them), and the last of it if its end may be cut in two.
        self._in_message = False
        self._has_cycle = False
        self._missing = 0
        self._tail = b""
        # Messages that ended in the bytes that are being parsed, and the last exchange.
        self._ended = 0
        self._begun: Exchange | None = None
        # What came behind the request under way, from an index on.
        self._behind = b""
        self._behind_at = 0
        self._goes_on = False
        self._reading: Reading
        # Bytes that it counts for in what all transfers take: of a body, of answers.
        self._held = 0
        self._unsent = 0
        self._closing: asyncio.TimerHandle | None = None
        self._slowed: asyncio.TimerHandle | None = None
        # Whether it was closed when it was last looked after.
        self._is_closed = False
        # Of its client's certificate.
        self._names: tuple[str, ...] = ()

    @classmethod
    def serving(
        cls, front: InferFront, floods: Floods, limit: ConnectionLimit
    ) -> partial[GatewayProtocol]:
        """What uvicorn calls for each connection."""
        return partial(cls, front, CommonHead(), Turns(), floods, limit, ReadBudget())

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            if self._known is None or not self._answer_known(data):
                self._take(data, 0)
        elif exchange.is_past_parser or exchange.missing >= _PAST_THE_PARSER_FROM:
            self._take_past_parser(exchange, data)
        else:
            self._take(data, 0)

    def _take(self, data: bytes, at: int) -> None:
        """Parse one message of `data[at:]`, or what there is of it; the rest waits, and
        so does what would take long.

        The parser gets no more at once than one message may have, so that where it ends
        is known. Remembers the head where `data` was one whole request; not for a
        client that hardly ever sends the same head twice.
        """
        learns = not (at or self._in_message) and self._unlike < _UNLIKE
        self._known = None
        self._begun = None
        self._ended = 0
        size = len(data)
        work = 0
        while at < size:
            if self._closing is not None:  # nothing is answered any more
                self.slow_down((size - at) / DROPPED)
                return
            is_next = self._in_message or (not self._ended and self._is_free())
            if self._behind or work >= _IN_A_TURN or not is_next:
                self._hold(data, at)
                return
            exchange = self._exchange
            if exchange is not None:
                if exchange.missing >= _PAST_THE_PARSER_FROM:
                    self._take_past_parser(exchange, memoryview(data)[at:])
                    return
                end = at + exchange.missing
            else:
                end = self._end_of_piece(data, at)
            chunks = self._chunks
            piece = data[at:end]
            self._unused += len(piece)
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                # The parser gives the body away to the other protocol. So it gets the
                # request once more, as if that had not been asked for.
                data = self._declined + data[at + upgrade.args[0] :]
                at, size, learns = 0, len(data), False
                self._declined = b""
                self.parser = self._new_parser()
                continue
            except httptools.HttpParserCallbackError as error:
                self._answer_failed(error.__context__ or error)
                return
            except httptools.HttpParserError as broken:
                self.send_400_response(str(broken))
                return
            if self._unused > _MOST_HEAD or len(self.headers) > _MOST_HEADERS:
                self._answer_failed(_too_long("head"))
                return
            at = end
            if self._in_message and self._exchange is None:
                work += len(piece) + _CALL * self._tell_of_body(chunks)
        if learns:
            self._remember(data)

    def _remember(self, data: bytes) -> None:
        """Remember the head of `data`, if all of it was one request that was begun.

        A method of its own: where `_begun` was set to None, mypyc takes it for that.
        """
        begun = self._begun
        if begun is not None and self._ended == 1 and begun.keep_alive:
            self._unlike += 1
            if self._unlike == 0:
                return  # many connections bring one request and no more
            access, limit = self._access, self._service.limits.max_body_bytes
            self._known = KnownHead.of(
                data,
                begun.path,
                begun.headers,
                begun.key,
                access.rules,
                min(limit, LARGEST_BODY),
                access.restrictions.header_names,
            )

    def _tell_of_body(self, chunks: int) -> int:
        """Have the application take what a piece has brought of a body, of which there
        were so many `chunks` before. Returns how many calls the piece was worth."""
        body = self._asgi_body()
        if body is not None:
            if len(body) > HIGH_WATER_LIMIT:
                self._reading.pause_reading()
            self.cycle.message_event.set()
        calls = 1 + max(0, self._chunks - chunks)
        self._piece = _PIECE if calls > _PIECE // _CALL else _LARGE_PIECE
        return calls

    def _asgi_body(self) -> bytearray | None:
        """What an application has not taken yet of the body that is coming; None where
        none comes, or one of an exchange, given up or not."""
        cycle: Any = self.cycle  # compiled code holds it to uvicorn's types
        if not (self._in_message and self._has_cycle) or isinstance(cycle, Exchange):
            return None
        body: bytearray = cycle.body
        return body

    def _end_of_piece(self, data: bytes, at: int) -> int:
        """Where a head that goes on at `data[at:]`, or a body in chunks, may end, or
        so many bytes of it as may be parsed at once, or a body that has a length; or
        the whole message, if the rest of `data` is a small one.

        It is if its head has a line that says so: the parser takes the body to be that
        long as well, or refuses the head, for lengths that contradict each other.
        """
        if self._missing:
            return at + self._missing
        tail = self._tail
        if tail:
            seam = (tail + data[at : at + 3]).find(_END)
            if seam >= 0:
                self._tail = b""
                return at + seam + len(_END) - len(tail)
        size = len(data)
        last = min(at + self._piece, size)
        end = data.find(_END, at, last)
        if end < 0:
            self._tail = (tail + data[max(at, last - 3) : last])[-3:]
            return last
        self._tail = b""
        end += len(_END)
        if end < size <= _MOST_AT_ONCE + at and not self._in_message:
            line = b"ontent-Length: %d\r\n" % (size - end)
            if (
                data.find(b"\r\nC" + line, at, end) >= 0
                or data.find(b"\r\nc" + line.lower(), at, end) >= 0
            ):
                return size
        return end

    def _hold(self, data: bytes, at: int) -> None:
        """Keep `data[at:]` until the request before it is answered."""
        if self._behind:
            data, at = self._behind[self._behind_at :] + data[at:], 0
        self._behind, self._behind_at = data, at
        if len(data) - at >= _MOST_BEHIND:
            self._reading.is_full = True
            self._reading.pause_reading()
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        """Take up what waits, if its turn has come: after all others'."""
        if (
            self._behind
            and not self._goes_on
            and self._slowed is None
            and (self._in_message or self._is_idle())
        ):
            self._goes_on = True
            self._turns.wait(self._go_on, self.loop)

    def _go_on(self) -> bool:
        self._goes_on = False
        if self.transport.is_closing() or not (self._in_message or self._is_idle()):
            return True
        data, at = self._behind, self._behind_at
        self._behind, self._behind_at = b"", 0
        self._take(data, at)
        if self._slowed is None:
            self._read_on()
        return True

    def _read_on(self) -> None:
        self._reading.is_full = len(self._behind) - self._behind_at >= _MOST_BEHIND
        body = self._asgi_body()
        # Else its application does, once it has taken what there is.
        if body is None or len(body) <= HIGH_WATER_LIMIT:
            self._reading.resume_reading()

    def _read_more(self) -> None:
        """Another turn of the event loop has begun."""
        if self._slowed is None and not self.transport.is_closing():
            self._read_on()

    def slow_down(self, refusals: float = 1.0) -> None:
        """Count what was refused; in a flood, look at what this client sends when its
        turn has come again."""
        wait = self._floods.charge(refusals)
        if wait and self._slowed is None and not self.transport.is_closing():
            self._reading.is_full = True
            self._reading.pause_reading()
            self._slowed = self.loop.call_later(wait, self._speed_up)

    def _speed_up(self) -> None:
        self._slowed = None
        if not self.transport.is_closing():
            self._read_on()
            self._go_on_soon()

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # As uvicorn's own: what follows `Connection: close` is not looked at.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _take_past_parser(self, exchange: Exchange, data: Buffer) -> None:
        """The rest of a large body needs no parser, which would copy it once more. A
        new one takes over after it."""
        exchange.is_past_parser = True
        missing = exchange.missing
        exchange.body.append(data if len(data) <= missing else data[:missing])
        taken = min(missing, len(data))
        exchange.missing = missing - taken
        transfers = self._service.transfers
        transfers.held += taken
        self._held += taken
        if transfers.is_full:
            self._end_with(transfers.refusal())
            self._give_back()
            return
        if exchange.missing:
            if self._budget.spend(taken, self.loop):
                self._reading.is_full = True
                self._reading.pause_reading()
                self._budget.wait(self._read_more)
            return
        self.parser = self._new_parser()
        self._in_message = False
        self._exchange = None
        exchange.begin()
        if len(data) > missing:
            self._hold(bytes(data[missing:]), 0)

    def _answer_known(self, data: bytes) -> bool:
        """Returns whether `data` was a whole request like the last one, which is under
        way."""
        known = self._known
        if (
            known is None
            or self._behind
            or ((cycle := self.cycle) is not None and not cycle.response_complete)
            or self.flow.write_paused
            or known.path not in self._short
            or known.rules is not self._access.keys.table
            or (headers := known.read(data)) is None
        ):
            return False
        self._unlike = 0
        exchange = Exchange(self._service, known.path, headers, self, True)
        exchange.key = known.key
        exchange.body.append(data[known.size :])
        self.cycle = exchange  # type: ignore[assignment]
        try:
            exchange.begin()
        except Exception as error:  # ours: as it would come out of the parser
            self._answer_failed(error)
        return True

    def _is_idle(self) -> bool:
        """Returns whether an answer would be the next that goes out, and at once."""
        cycle = self.cycle
        return (cycle is None or cycle.response_complete) and not self.flow.write_paused

    def _is_free(self) -> bool:
        """Whether what comes now is the next to be looked at: `_is_idle`, and nothing
        waits behind."""
        if self._behind or self.flow.write_paused:
            return False
        cycle = self.cycle
        return cycle is None or cycle.response_complete

    def _answer_failed(self, error: BaseException) -> None:
        """Answers what was raised in a callback of the parser, and ends it there.

        A mistake of ours would otherwise look like one of the client's.
        """
        if isinstance(error, httptools.HttpParserInvalidURLError):
            self.send_400_response("")
        else:
            self._end_with(error)

    # -- the parser's callbacks

    def on_message_begin(self) -> None:
        self._in_message = True
        self._has_cycle = False
        self._missing = 0
        self._chunks = 0
        # uvicorn makes the scope here; it is made later, where it is needed.
        self.url = b""
        self.headers = []

    # As uvicorn's own two, but compiled with the rest of this.
    def on_url(self, url: bytes) -> None:
        # No `+=`, which mypyc does not know of attributes that uvicorn makes.
        self.url = self.url + url

    def on_header(self, name: bytes, value: bytes) -> None:
        if value[-1:] <= b" ":  # white space around a value is not part of it
            value = value.rstrip(b" \t")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._unused > _MOST_HEAD or len(self.headers) > _MOST_HEADERS:
            raise _too_long("head")
        self._unused = 0
        parser, front = self.parser, self.front
        if parser.should_upgrade():
            self._declined = self._head_without_upgrade()
            return
        url = self.url
        if len(url) > _MOST_URL:
            raise _too_long("URL")
        if url[:1] != b"/":
            self.url = _origin_form(url)
        if front.base_path:
            self._take_base_off(front.base_path)
        path = self._infer_path()
        if path:
            service = self._service
            headers = dict(self.headers)
            if len(headers) < len(self.headers):
                self._access.check_once(self.headers)
            if b"host" not in headers:
                raise _without_host()
            length = headers.get(b"content-length", b"")
            # What is unusual is left to uvicorn and the front.
            if (
                length.isdigit()
                and len(length) < 16
                and (missing := int(length)) <= service.limits.max_body_bytes
                and b"content-encoding" not in headers
                and b"expect" not in headers
                and (b"accept" not in headers or not wants_events(headers))
                and (
                    b"accept-encoding" not in headers
                    or front.coding_for(headers) is None
                )
                and (front.for_pages is None or b"origin" not in headers)
            ):
                keep_alive = parser.should_keep_alive()
                exchange = Exchange(service, path, headers, self, keep_alive)
                if self._access.guards_inference:
                    exchange.key = self._access.check_inference(
                        path, headers, self._names
                    )
                exchange.missing = missing
                if missing > DECODED_AT_ONCE:
                    exchange.is_large = True
                exchange.arrived = monotonic_ns()
                self._exchange = self._begun = exchange
                self._has_cycle = True
                self.cycle = exchange  # type: ignore[assignment]
                return
        self._exchange = None
        self._begin_cycle()

    def _take_base_off(self, base: bytes) -> None:
        """As a proxy would do that forwards what is below a path."""
        url = self.url
        rest = url[len(base) :] if url.startswith(base) else url
        is_below = rest is not url and rest[:1] in (b"/", b"?", b"")
        self.base = base.decode() if is_below else ""
        self._is_bare = is_below and rest[:1] != b"/"
        if is_below:
            self.url = b"/" + rest if self._is_bare else rest

    def client_of(self, headers: Mapping[bytes, bytes]) -> str:
        """The address of who sends a request with these headers."""
        return self.front.proxies.client_of(self._address, headers)

    def _begin_cycle(self) -> None:
        """Uvicorn's way, where the head of a request is complete."""
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            msg = f"HTTP/{version} is not spoken here; expected HTTP/1.1 or HTTP/1.0"
            raise HttpError(505, msg, "http_version_not_supported")
        url, given = self.url, self.headers
        if version == "1.1" and not any(name == b"host" for name, _ in given):
            raise _without_host()
        if self._is_extra:
            path = unquote(url.partition(b"?")[0].decode("latin-1"))
            group = key_group(path, self.parser.get_method().decode())
            if group is not None and group != "manage":
                raise _too_many(self._entry)
        _check_framing(given)
        super().on_message_begin()
        self.url = url
        self.headers[:] = given
        scope: Any = self.scope
        self._tell_of_connection(scope)
        for name, value in given:
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
        super().on_headers_complete()
        self._has_cycle = True
        # What stands behind a body in chunks is no header, whatever it says.
        self.headers = given
        if self._is_extra:
            self.finish()
        for name, value in given:
            if name == b"content-length":  # the parser has seen that it is a number
                self._missing = int(value)

    def _tell_of_connection(self, scope: Any) -> None:
        """What a scope of ours has that uvicorn's has not."""
        scope[CONNECTION] = self
        if self.base:
            scope[BASE] = self.base
            if self._is_bare:
                scope[BARE] = True
        if self._names:
            scope[NAMES] = self._names

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        start = partial(HttpToolsProtocol._start_asgi_task, self, cycle, app)
        self._turns.wait(start, self.loop)

    def _head_without_upgrade(self) -> bytes:
        """The request line and the headers again, but for the other protocol."""
        if self.parser.get_method() == b"CONNECT":
            allow = ((b"allow", b"GET, POST"),)
            msg = "Method Not Allowed: this is no proxy"
            raise HttpError(405, msg, "method_not_allowed", allow)
        lines = [b"%b %b HTTP/%b" % (
            self.parser.get_method(), self.url, self.parser.get_http_version().encode()
        )]  # fmt: skip
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(t for t in tokens if t.lower() not in _UPGRADES)
            if value and name not in _UPGRADES:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        exchange = self._exchange
        if exchange is None:
            self._arrived += len(body)
            self._chunks += 1
            if self._missing:
                self._missing -= len(body)
            # As uvicorn's own, but that the application is told of many at once.
            cycle = self.cycle
            if not cycle.response_complete:
                cycle.body += body
        else:
            exchange.body.append(body)
            exchange.missing -= len(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._declined:
            return
        self._ended += 1
        exchange = self._exchange
        if exchange is None:
            self._piece = _PIECE
            super().on_message_complete()
            return
        self._exchange = None
        exchange.begin()

    def _infer_path(self) -> str:
        """The path of the request where it can go the short way, else empty."""
        parser = self.parser
        if parser.get_method() != b"POST" or parser.get_http_version() != "1.1":
            return ""
        # A client that keeps its connection usually asks for the same again.
        url = self.url
        if url != self._last_url:
            path = url.partition(b"?")[0].decode("latin-1")
            self._last_path = unquote(path) if "%" in path else path
            self._last_url = url
        path = self._last_path
        return path if path in self._short else ""

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._reading = Reading(transport)
        self._floods.charge(ENTRY)
        self._address = str(self.client[0]) if self.client else ""
        self._entry = self._limit.enter(self, self._address, len(self.connections))
        if self._entry is not Entry.FREE:
            self._is_extra = True
            self._short = {}
            self.timeout_keep_alive = int(_EXTRA_PATIENCE)
            if self._entry is Entry.REFUSED:
                transport.abort()
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self._names = names_of(certificate)

    def has_asked(self) -> bool:
        """Returns whether the head of a request has come."""
        return self.cycle is not None

    def evict(self) -> None:
        """Make room for another connection."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self.cycle
        super().connection_lost(exc)
        self._limit.leave(self, self._address, len(self.connections))
        if isinstance(cycle, Exchange):
            cycle.disconnect()
        elif cycle is not None:
            cycle.body = bytearray()
        if self._slowed is not None:
            self._slowed.cancel()
        if self._closing is not None:
            self._closing.cancel()
        elif cycle is None or self._in_message:  # it has asked nothing, or by half
            is_tls = not self.transport.can_write_eof()
            self._floods.charge(HANDSHAKE if is_tls else 1.0)
        else:
            self._floods.charge(-ENTRY)  # clients may take one for each request
        # A cycle and its connection know each other. Nothing that they hold may wait
        # for the garbage collector, which comes by rarely.
        self.cycle = None  # type: ignore[assignment]
        scope = getattr(self, "scope", None)
        if scope is not None:
            scope.pop(CONNECTION, None)
        self._exchange = self._begun = self._known = None
        self._behind = b""
        if self._held:
            self._give_back()
        if self._unsent:
            self._count_unsent(0)

    def pause_writing(self) -> None:
        """The client takes an answer more slowly than it was made."""
        super().pause_writing()
        self._count_unsent(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._count_unsent(0)
        self._go_on_soon()

    def _count_unsent(self, size: int) -> None:
        self._service.transfers.add(size - self._unsent)
        self._unsent = size

    def _give_back(self) -> None:
        """The body that was counted is there no more."""
        self._service.transfers.add(-self._held)
        self._held = 0

    def on_exchange_complete(self) -> None:
        """The answer to the exchange under way has been handed to the transport."""
        self.server_state.total_requests += 1
        self._idle_since = self.loop.time()
        if self._held:
            self._give_back()
        if self._behind:
            self._go_on_soon()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()
        self._idle_since = self.loop.time()
        self._go_on_soon()

    def look_after(
        self,
        now: float,
        head_patience: float,
        patience: float,
        send_patience: float,
    ) -> None:
        """Close the connection if nothing has happened on it for too long, if a head
        is not complete after `head_patience` seconds, if a body has stopped coming for
        more than `patience`, or if its client has taken nothing of what is there for it
        for `send_patience`.

        One look at all connections every few seconds, where uvicorn sets and cancels a
        timer for every request.
        """
        if self.transport.is_closing():
            self._end_closing(now, send_patience)
            return
        if self._closing is not None:  # its last answer is sent
            return
        if self._is_extra:
            head_patience = patience = _EXTRA_PATIENCE
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            self._idle_since = now
            if self._send_stall.stands_still(self, unsent, now) > send_patience:
                self.transport.abort()
                return
        else:
            self._send_stall.forget()
        self._look_after_message(now, head_patience, patience)

    def _look_after_message(
        self, now: float, head_patience: float, patience: float
    ) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            if self._in_message and not self._has_cycle:
                # The list of headers is another one for each message.
                stood = self._stall.stands_still(self.headers, 0, now)
                if stood > head_patience:
                    self._end_with(_too_slow(stood), stood)
                    return
            else:
                self._stall.forget()
            if now - self._idle_since >= self.timeout_keep_alive:
                self.transport.close()
        elif self._exchange is not None or getattr(cycle, "more_body", False):
            missing = self._exchange.missing if self._exchange is not None else 0
            stood = self._stall.stands_still(cycle, self._arrived - missing, now)
            if stood > patience:
                self._give_up(stood)
        else:
            self._stall.forget()
            # That goes unnoticed on a connection that is not read from.
            if self.flow.read_paused and _has_gone(self.transport):
                self.transport.abort()

    def shutdown(self) -> None:
        """As uvicorn's own, and again until the connection has gone: one over TLS,
        which is closed when its client says so too, ends without that."""
        if self.transport.is_closing():
            self._end_closing(self.loop.time(), math.inf)
        else:
            super().shutdown()

    def _end_closing(self, now: float, send_patience: float) -> None:
        """End a connection that is closed as soon as its client has taken everything,
        or has taken nothing for `send_patience` seconds."""
        transport = self.transport
        if self._is_closed and is_all_taken(transport):
            transport.abort()
            return
        self._is_closed = True  # what was just written goes out first
        taken = acknowledged(transport)
        if self._send_stall.stands_still(transport, taken, now) > send_patience:
            transport.abort()

    def _give_up(self, stood: float) -> None:
        """End a request whose body has stopped coming, and its connection."""
        self._end_with(BodyStopped(stood), stood)

    def _end_with(self, error: BaseException, stood: float = 0.0) -> None:
        """Send the connection's last answer: to the message that is being parsed, and
        that took `stood` seconds at least."""
        cycle = self.cycle if self._has_cycle else None
        if cycle is not None and (
            cycle.response_complete or getattr(cycle, "response_started", False)
        ):
            self.transport.close()  # it has its answer, or half of one
            return
        asked = cycle.asked() if isinstance(cycle, Exchange) else self._asked_so_far()
        request_id = asked.request_id
        answer = ErrorResponse.of(error, request_id, close=True)
        head = b"".join(b"%b: %b\r\n" % header for header in answer.headers)
        head += self.front.lines_for_origin(
            next((v for n, v in self.headers or () if n == b"origin"), None)
        )
        status = STATUS_LINE[answer.status]
        code = row_of(error).code
        given = cycle.headers if isinstance(cycle, Exchange) else self._headers_so_far()
        self._service.answers.count(
            route_of(asked.path.removeprefix(self.base), asked.method),
            answer.status,
            code,
            self._access.label(given, self._names),
        )
        self.transport.write(
            b"%b%bx-request-id: %b\r\n\r\n%b" % (status, head, request_id, answer.body)
        )
        now, why = monotonic_ns(), str(error)
        failed = Failed(asked, None, answer.status, code, why, now, stood)
        self._service.journal.fail(failed)
        if isinstance(cycle, Exchange):
            cycle.give_up()
        elif cycle is not None:  # its reader is told that there is no more
            cycle.disconnected = True
            cycle.message_event.set()
        self._close_gently()

    def _asked_so_far(self) -> Asked:
        """What has been read of the message that is being parsed."""
        headers = self._headers_so_far()
        has_url = self._in_message and bool(self.url)
        return Asked(
            id_of(headers),
            self.parser.get_method().decode() if has_url else "-",
            self.base + self.url.decode("latin-1") if has_url else "-",
            self.client_of(headers),
            headers.get(b"traceparent", b""),
        )

    def _headers_so_far(self) -> dict[bytes, bytes]:
        return dict(self.headers) if self._in_message else {}

    def _close_gently(self, refusals: float = 1.0) -> None:
        """Close the connection when its client has had time to read the last answer."""
        self._exchange = self._known = None
        self._behind = b""
        if self.transport.can_write_eof():  # not over TLS
            self.transport.write_eof()
        self.slow_down(max(1.0, refusals))
        if self._slowed is None:
            self._read_on()
        self._closing = self.loop.call_later(_LINGER, self.transport.close)

    @property
    def is_ending(self) -> bool:
        """Returns whether it has been sent its last answer."""
        return self._closing is not None

    def drop_rest(self, refusals: float) -> None:
        """The body that is being received is not wanted, and cost so many `refusals`:
        its request is answered, as the last of its connection."""
        cycle: Any = self.cycle
        if cycle is not None:
            cycle.disconnected = True
            cycle.body = bytearray()
            self._close_gently(refusals + self._chunks * _CALL / READ)

    def finish(self) -> None:
        """Make the request that is being answered the connection's last."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Our form of error where the HTTP itself is broken."""
        text = "the request is not valid HTTP/1.1"
        if msg:
            text += f": {msg}"
        self._end_with(HttpError(400, text, "bad_http"))


def _check_framing(headers: list[Header]) -> None:
    """Raises for what one server may read in another way than the next."""
    for name, value in headers:
        if name == b"transfer-encoding" and value.lower() != b"chunked":
            coding = value[:40].decode("latin-1")
            msg = f"transfer encoding {coding!r} is not read here; expected 'chunked'"
            raise HttpError(501, msg, "unsupported")


def _too_many(entry: Entry) -> HttpError:
    msg = "the server has as many connections as it may have (--max-connections)"
    if entry is Entry.EXTRA_OF_ADDRESS:
        msg = (
            "this address has as many connections as one may have "
            "(--max-connections-per-address)"
        )
    return HttpError(503, msg, "too_many_connections", ((b"retry-after", b"1"),))


def _without_host() -> HttpError:
    msg = "the request is not valid HTTP/1.1: it has no header Host"
    return HttpError(400, msg, "bad_http")


def _too_slow(seconds: float) -> HttpError:
    msg = f"the head of the request was not complete after {seconds:.0f} seconds"
    return HttpError(408, msg, "head_too_slow")


def _too_long(what: str) -> HttpError:
    if what == "URL":
        msg = f"the URL has more than {_MOST_URL} bytes"
        return HttpError(414, msg, "url_too_long")
    most = f"{_MOST_HEAD} bytes, or than {_MOST_HEADERS} headers"
    msg = f"the head of the request has more than {most}"
    return HttpError(431, msg, "head_too_long")


def _origin_form(url: bytes) -> bytes:
    """The path and the query of an absolute URL; others are left as they are."""
    # Any: its types do not say that a path may be missing, and compiled code asks.
    parsed: Any = httptools.parse_url(url)
    path: bytes = parsed.path or b"/"
    return path if parsed.query is None else b"%b?%b" % (path, parsed.query)


def _has_gone(transport: asyncio.Transport) -> bool:
    """Returns whether the other end has closed a connection that is not read from."""
    look = select.poll()
    look.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(look.poll(0))
