"""uvicorn's HTTP protocol, with a short way for inference.

A request to a path of the model table whose body comes with a Content-Length is
answered right here: the parser's callbacks collect its body in chunks, the complete
body starts an `InferCall`, and its result is written to the connection from the
device's `poll`. There is no task, no future and no message in between, which halves
what a small request costs (bench/LOG.md). Everything else goes uvicorn's way, through
ASGI, including all that is unusual about an inference: no Content-Length, too long a
body, compression, an answer in events, Expect, HTTP/1.0.

To uvicorn an `Exchange` is the cycle of a request like its own: it queues pipelined
requests behind it and ends it in an orderly way.
"""

from __future__ import annotations

import logging
from functools import partial
from time import monotonic_ns
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.codec.messages import Buffer, Header
from app.errors import BodyStopped, ErrorResponse, HttpError
from app.exchange import Exchange
from app.front import InferFront
from app.known_head import KnownHead
from app.stalls import Stall
from app.streaming import wants_events

logger = logging.getLogger(__name__)

# Of a request line with its headers, or of what stands between chunks and behind them.
_MOST_HEAD = 64 * 1024
_MOST_URL = 16 * 1024
# What asks for another protocol, which is never spoken here.
_UPGRADES = (b"connection", b"upgrade", b"http2-settings")
# Where at least so many bytes of a body are still to come, they go past the parser.
_PAST_THE_PARSER_FROM = 64 * 1024
# Requests in a row that were each unlike the one before: there is nothing to remember.
_UNLIKE = 8


class CommonHead:
    """The headers of every answer, as bytes; uvicorn renews them each second."""

    __slots__ = ("_bytes", "_of")

    def __init__(self) -> None:
        self._of: list[Header] | None = None
        self._bytes = b""

    def of(self, headers: list[Header]) -> bytes:
        if headers is not self._of:
            self._of = headers
            self._bytes = b"".join(b"%b: %b\r\n" % header for header in headers)
        return self._bytes


class GatewayProtocol(HttpToolsProtocol):
    """One connection. `front` answers inference, and is the ASGI application."""

    def __init__(
        self, front: InferFront, common: CommonHead, *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        # The connections of one server may have different ones.
        self.app = self.front = front
        self._common = common
        self._exchange: Exchange | None = None
        self._idle_since = self.loop.time()
        self._stall = Stall()
        self._arrived = 0
        # Bytes that were parsed since something was made of them.
        self._unused = 0
        self._declined = b""
        self._last_url = b""
        self._last_path = ""
        # Of the last request, where it came in one piece and the parser has seen
        # nothing behind it; and what the bytes that are being parsed contain.
        self._known: KnownHead | None = None
        self._unlike = 0
        self._messages = 0
        self._in_message = False
        self._begun: Exchange | None = None

    @classmethod
    def serving(cls, front: InferFront) -> partial[GatewayProtocol]:
        """What uvicorn calls for each connection."""
        return partial(cls, front, CommonHead())

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            if self._answer_known(data):
                return
            if len(data) >= _PAST_THE_PARSER_FROM and not self._in_message:
                self._parse_head(data)
            else:
                self._parse_and_learn(data)
        elif exchange.is_past_parser or exchange.missing >= _PAST_THE_PARSER_FROM:
            self._take_past_parser(exchange, data)
        else:
            self._parse(data)

    def _parse_head(self, data: bytes) -> None:
        """Parse a request with a large body as far as its head seems to go."""
        self._known = None
        size = data.find(b"\r\n\r\n", 0, _MOST_HEAD) + 4
        self._parse(data[:size])
        exchange = self._exchange
        if exchange is not None and exchange.missing >= _PAST_THE_PARSER_FROM:
            self._take_past_parser(exchange, memoryview(data)[size:])
        elif not self.transport.is_closing():
            self._parse(data[size:])

    def _take_past_parser(self, exchange: Exchange, data: Buffer) -> None:
        """The rest of a large body needs no parser, which would copy it once more. A
        new one takes over after it."""
        exchange.is_past_parser = True
        missing = exchange.missing
        exchange.body.append(data if len(data) <= missing else data[:missing])
        exchange.missing = missing - min(missing, len(data))
        if exchange.missing:
            return
        self.parser = httptools.HttpRequestParser(self)
        self._in_message = False
        self._exchange = None
        exchange.begin(self.front)
        if len(data) > missing:
            self._parse_and_learn(bytes(data[missing:]))

    def _answer_known(self, data: bytes) -> bool:
        """Whether `data` was a whole request like the last one, which is under way."""
        known = self._known
        if (
            known is None
            or len(data) != known.total
            or not data.startswith(known.head)
            or not self._is_free()
            or known.path not in self.front.models.paths
        ):
            return False
        self._unlike = 0
        exchange = Exchange(self, known.path, keep_alive=True)
        exchange.headers = known.headers
        exchange.body.append(data[known.size :])
        self.cycle = exchange  # type: ignore[assignment]
        try:
            exchange.begin(self.front)
        except Exception as error:  # ours: as it would come out of the parser
            self._answer_failed(error)
        return True

    def _parse_and_learn(self, data: bytes) -> None:
        """`_parse`, and remember the head where `data` was one whole request.

        Not for a client that hardly ever sends the same head twice.
        """
        learns = not self._in_message and self._unlike < _UNLIKE
        self._known = None
        self._messages = 0
        self._parse(data)
        begun = self._begun
        if not learns or begun is None or self._in_message or self._messages != 1:
            return
        if begun.keep_alive:
            self._unlike += 1
            self._known = KnownHead.of(data, begun.path, begun.headers)

    def _is_free(self) -> bool:
        """Whether an answer would be the next that goes out, and at once."""
        cycle = self.cycle
        return (cycle is None or cycle.response_complete) and not self.flow.write_paused

    def _parse(self, data: bytes) -> None:
        """As uvicorn's own, which would first look for a timer that is never set."""
        self._begun = None
        while data:
            self._unused += len(data)
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # The parser gives the body away to the other protocol. So it gets the
                # request once more, as if that had not been asked for.
                data = self._declined + data[upgrade.args[0] :]
                self._declined = b""
                self.parser = httptools.HttpRequestParser(self)
                continue
            except httptools.HttpParserCallbackError as error:
                self._answer_failed(error.__context__ or error)
            except httptools.HttpParserError:
                self.send_400_response("")
            else:
                if self._unused > _MOST_HEAD:
                    self._answer_failed(_too_long("head"))
            return

    def _answer_failed(self, error: BaseException) -> None:
        """Answers what was raised in a callback of the parser, and ends it there.

        A mistake of ours would otherwise look like one of the client's.
        """
        if isinstance(error, httptools.HttpParserInvalidURLError):
            self.send_400_response("")
        else:
            self._end_with(ErrorResponse.of(error, close=True))

    # -- the parser's callbacks

    def on_message_begin(self) -> None:
        self._messages += 1
        self._in_message = True
        # uvicorn makes the scope here; it is made later, where it is needed.
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    # As uvicorn's own two, but compiled with the rest of this.
    def on_url(self, url: bytes) -> None:
        # No `+=`, which mypyc does not know of attributes that uvicorn makes.
        self.url = self.url + url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._unused = 0
        if self.parser.should_upgrade():
            self._declined = self._head_without(_UPGRADES)
            return
        base = self.front.base_path
        if base and self.url.startswith(base):
            # As a proxy would do that forwards what is below a path.
            rest = self.url[len(base) :]
            if rest[:1] in (b"/", b"?", b""):
                self.url = rest if rest[:1] == b"/" else b"/" + rest
        path = self._infer_path()
        if path:
            keep_alive = self.parser.should_keep_alive()
            exchange = Exchange(self, path, keep_alive)
            exchange.headers = dict(self.headers)
            length = exchange.headers.get(b"content-length", b"")
            # Whatever is unusual is uvicorn's and the front's.
            limit = self.front.limits.max_body_bytes
            if (
                length.isdigit()
                and len(length) < 16
                and int(length) <= limit
                and b"content-encoding" not in exchange.headers
                and not wants_events(exchange.headers)
                and self.front.coding_for(exchange.headers) is None
            ):
                exchange.missing = int(length)
                if self.front.models.paths[path].tracer is not None:
                    exchange.arrived = monotonic_ns()
                self._exchange = self._begun = exchange
                self.cycle = exchange  # type: ignore[assignment]
                return
        self._exchange = None
        if len(self.url) > _MOST_URL:
            raise _too_long("URL")
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers[:] = headers
        super().on_headers_complete()

    def _head_without(self, names: tuple[bytes, ...]) -> bytes:
        """The request line and the headers again, but for some."""
        if self.parser.get_method() == b"CONNECT":
            allow = ((b"allow", b"GET, POST"),)
            msg = "Method Not Allowed: this is no proxy"
            raise HttpError(405, msg, "method_not_allowed", allow)
        lines = [b"%b %b HTTP/%b" % (
            self.parser.get_method(), self.url, self.parser.get_http_version().encode()
        )]  # fmt: skip
        lines += [b"%b: %b" % (k, v) for k, v in self.headers if k not in names]
        return b"\r\n".join([*lines, b"", b""])

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        exchange = self._exchange
        if exchange is None:
            self._arrived += len(body)
            super().on_body(body)
        else:
            exchange.body.append(body)
            exchange.missing -= len(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._declined:
            return
        exchange = self._exchange
        if exchange is None:
            super().on_message_complete()
            return
        self._exchange = None
        exchange.begin(self.front)

    def _infer_path(self) -> str:
        """The path of the request where it can go the short way, else empty."""
        if self.expect_100_continue or not self._is_free():
            return ""
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
        if self.root_path or path not in self.front.models.paths:
            return ""
        if self.front.restricts_inference:
            return ""
        return path

    # -- the connection

    def common_head(self) -> bytes:
        return self._common.of(self.server_state.default_headers)

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self.cycle
        super().connection_lost(exc)
        if isinstance(cycle, Exchange):
            cycle.disconnect()

    def on_exchange_complete(self) -> None:
        """The answer to the exchange under way has been handed to the transport."""
        if self.pipeline:
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        self._idle_since = self.loop.time()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()
        self._idle_since = self.loop.time()

    def look_after(self, now: float, patience: float) -> None:
        """Close the connection if nothing has happened on it for too long, or if a
        body has stopped coming for more than `patience` seconds.

        One look at all connections every few seconds, where uvicorn sets and cancels a
        timer for every request.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
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

    def _give_up(self, stood: float) -> None:
        """End a request whose body has stopped coming, and its connection."""
        if not getattr(self.cycle, "response_started", False):
            self._end_with(ErrorResponse.of(BodyStopped(stood), close=True))
        else:
            self.transport.close()

    def _end_with(self, answer: ErrorResponse) -> None:
        """Send the connection's last answer."""
        head = b"".join(b"%b: %b\r\n" % header for header in answer.headers)
        status = STATUS_LINE[answer.status]
        self.transport.write(b"%b%b\r\n%b" % (status, head, answer.body))
        self.transport.close()

    def finish(self) -> None:
        """Make the request that is being answered the connection's last."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Our form of error where the HTTP itself is broken."""
        text = "the request is not valid HTTP/1.1"
        self._end_with(ErrorResponse.of(HttpError(400, text, "bad_http"), close=True))


def _too_long(what: str) -> HttpError:
    if what == "URL":
        msg = f"the URL has more than {_MOST_URL} bytes"
        return HttpError(414, msg, "url_too_long")
    msg = f"the head of the request has more than {_MOST_HEAD} bytes"
    return HttpError(431, msg, "head_too_long")
