"""`GatewayProtocol`: one connection over HTTP/1.1.

A `Framer` finds the messages in the received bytes, and `Dispatch` decides what handles
each. An `Exchange` is answered here, from the device's `poll`. An `AsgiCycle` is
answered by the application.

A connection handles one request at a time. Bytes behind the request wait in a small
`Backlog` until the answer is written. So answers keep their order, even answers to
invalid input. A client that disconnects leaves at most one run behind.
"""

from __future__ import annotations

import asyncio
import math
import select
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from uvicorn import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from app.codec.messages import Buffer, Header
from app.errors import BodyStopped, HttpError, TransferMemoryFull
from app.http.asgi import CONNECTION
from app.http.connection.backlog import Backlog
from app.http.connection.clocks import (
    ANSWER,
    REQUEST,
    REST_OF_BODY,
    REST_OF_HEAD,
    Clocks,
    Patience,
    Verdict,
)
from app.http.connection.cycle import AsgiCycle
from app.http.connection.dispatch import Dispatch, check_extra
from app.http.connection.exchange import CommonHead, Exchange
from app.http.connection.flow import Flow
from app.http.connection.framing import CALL, HEAD, IDLE, PAST, Framer, Head
from app.http.connection.known_head import KnownHead
from app.http.connection.last_answer import asked_so_far, last_answer
from app.http.connection.turns import ReadBudget, Turns
from app.http.connection_limit import ConnectionLimit, Entry
from app.http.floods import DROPPED, ENTRY, HANDSHAKE, READ, Floods
from app.http.front import InferFront
from app.http.tls import names_of
from app.serving.transfer_memory import Share

#: Bytes of heads and of chunked bodies that are parsed in one turn.
_IN_A_TURN: Final = 64 * 1024
#: The server stops reading if the application has not taken this many bytes.
_MOST_UNTAKEN: Final = 64 * 1024
#: For this many seconds the rest of a request is read and dropped before its connection
#: is closed. If a connection is closed with unread bytes, the client loses the answer.
_LINGER: Final = 1.0
#: If this many requests in a row differ, no head is remembered any more.
_UNLIKE: Final = 8
#: The timeout in seconds of connections that are let in beyond the limit.
_EXTRA_PATIENCE: Final = 1.0
_NO_PATHS: Final[dict[str, Any]] = {}


class GatewayProtocol(asyncio.Protocol):
    """One connection of a listener; the arguments up to `budget` are the listener's."""

    # `connection_made` sets both. The event loop calls nothing before.
    transport: asyncio.Transport
    flow: Flow

    def __init__(
        self,
        dispatch: Dispatch,
        common: CommonHead,
        turns: Turns,
        floods: Floods,
        limit: ConnectionLimit,
        budget: ReadBudget,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._dispatch = dispatch
        self._service = dispatch.service
        self._access = dispatch.access
        # The paths of requests that can become exchanges.
        self._short: dict[str, Any] = dispatch.short
        self.common = common
        self._turns = turns
        self._floods = floods
        self._limit = limit
        self._budget = budget
        self._loop = _loop
        self.server_state = server_state
        self._app_state = app_state
        self._connections: set[Any] = server_state.connections
        # The addresses of both ends, and the names of the client's certificate.
        self.server: tuple[str, int | None] | None = None
        self.client: tuple[str, int] | None = None
        self.scheme: Any = None
        self.names: tuple[str, ...] = ()
        self._address = ""
        # Whether the connection is beyond a limit, and which limit.
        self._is_extra = False
        self._entry = Entry.FREE
        self._framer = Framer()
        self._backlog = Backlog()
        self._clocks = Clocks(config.timeout_keep_alive, _loop.time())
        # The last request whose head has arrived, and the request whose body is
        # arriving.
        self.cycle: Exchange | AsgiCycle | None = None
        self._receiving: Exchange | AsgiCycle | None = None
        # The base path removed from the target of the last request, and whether nothing
        # was left.
        self.base = ""
        self.is_bare = False
        # The head of the last request, if it came in one piece, and the number of
        # successive requests that each differed from the one before.
        self._known: KnownHead | None = None
        self._unlike = -1
        # Its shares of the transfer memory: for a large body, and for answers.
        self._held = Share(self._service.transfers)
        self._unsent = Share(self._service.transfers)
        self._closing: asyncio.TimerHandle | None = None
        self._slowed: asyncio.TimerHandle | None = None

    @classmethod
    def serving(
        cls, front: InferFront, floods: Floods, limit: ConnectionLimit
    ) -> partial[GatewayProtocol]:
        """Return the factory for the connections of a listener."""
        dispatch, common = Dispatch(front), CommonHead()
        return partial(cls, dispatch, common, Turns(), floods, limit, ReadBudget())

    # -- input from the client

    def data_received(self, data: bytes) -> None:
        if (
            self._receiving is not None
            or self._known is None
            or not self._answer_known(data)
        ):
            self._take(data, 0)

    def _answer_known(self, data: bytes) -> bool:
        """Return whether `data` was a whole request like the last one, and start it if
        so.
        """
        known = self._known
        if (
            known is None
            or self._backlog.data
            or ((cycle := self.cycle) is not None and not cycle.response_complete)
            or self.flow.write_paused
            or known.path not in self._short
            or known.rules is not self._access.keys.table
            or (headers := known.read(data)) is None
        ):
            return False
        self._unlike = 0
        exchange = Exchange(
            self._service, known.path, known.url_path, headers, self, True
        )
        exchange.key = known.key
        exchange.body.append(data[known.size :])
        self.cycle = exchange
        try:
            exchange.begin()
        except Exception as error:  # our fault
            self._end_with(error, exchange)
        return True

    def _take(self, data: bytes, at: int) -> None:
        """Read one message of `data[at:]`, or the part received so far.

        The rest waits, and so does slow work.
        """
        framer = self._framer
        learns = at == 0 and framer.state == IDLE and self._unlike < _UNLIKE
        self._known = None
        has_ended = False
        size = len(data)
        work = 0
        while at < size:
            if self._closing is not None:  # no further request is answered
                self.slow_down((size - at) / DROPPED)
                return
            is_next = framer.state >= HEAD or (not has_ended and self._is_idle())
            if self._backlog.data or work >= _IN_A_TURN or not is_next:
                self._hold(data, at)
                return
            is_past = framer.state == PAST
            end = framer.feed(data, at)
            size_read, at = end - at, end
            try:
                if framer.head is not None:
                    self._begin(framer.head)
                receiving = self._receiving
                if receiving is None:  # the head is incomplete
                    work += size_read + CALL
                elif isinstance(receiving, Exchange):
                    receiving.body += framer.body
                    if is_past and not self._count_body(receiving, size_read):
                        return
                else:
                    work += size_read + CALL * (1 + len(framer.body))
                    self._hand_on(receiving, framer.body)
                if framer.has_ended:
                    has_ended = True
                    self._end_message(receiving)
            except Exception as error:
                self._end_with(error, self._receiving)
                return
            if framer.error is not None:
                self._end_with(framer.error, self._receiving)
                return
        if learns and has_ended:
            self._remember(data)

    def _begin(self, head: Head) -> None:
        """Start the request of a head. Raises the error to answer instead."""
        dispatch = self._dispatch
        target, self.base, self.is_bare = dispatch.target(head.target)
        if self.base:
            head = head._replace(target=target)
        if not self._is_extra:
            exchange = dispatch.exchange(head, self, self.names)
            if exchange is not None:
                self.cycle = self._receiving = exchange
                return
        else:
            check_extra(head, self._entry)
        cycle = AsgiCycle(dispatch.scope(head, self, self._app_state), head, self)
        if self._is_extra:
            cycle.be_last()
        self.cycle = self._receiving = cycle
        self._turns.wait(partial(self._start, cycle), self._loop)

    def _start(self, cycle: AsgiCycle) -> None:
        task = self._loop.create_task(cycle.run(self._dispatch.front))
        tasks = self.server_state.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _hand_on(self, cycle: AsgiCycle, body: list[Buffer]) -> None:
        """Give the application the part of its body in this piece."""
        if cycle.response_complete or cycle.disconnected or not body:
            return
        for part in body:
            cycle.body += part
        if len(cycle.body) > _MOST_UNTAKEN:
            self.flow.pause_reading()
        cycle.on_body()

    def _count_body(self, exchange: Exchange, size: int) -> bool:
        """Count `size` bytes of a large body. Return whether there is memory for it."""
        try:
            self._held.take(size)
        except TransferMemoryFull as full:
            self._end_with(full, exchange)
            self._held.give_back()
            return False
        if not self._framer.has_ended and self._budget.spend(size, self._loop):
            self.flow.hold_reading()
            self._budget.wait(self._read_more)
        return True

    def count_decoded(self, size: int) -> None:
        """Count more bytes that a body has become. Raises `TransferMemoryFull`."""
        self._held.take(size)

    def _end_message(self, cycle: Exchange | AsgiCycle | None) -> None:
        """Handle the end of a request."""
        if isinstance(cycle, Exchange):
            cycle.begin()
        elif cycle is not None:
            cycle.more_body = False
            cycle.on_body()
        self._receiving = None

    def _remember(self, data: bytes) -> None:
        """Remember the head of `data`, which was exactly one request."""
        begun = self.cycle
        if isinstance(begun, Exchange) and begun.keep_alive:
            self._unlike += 1
            if self._unlike > 0:  # many connections carry only one request
                self._known = self._dispatch.known(data, begun)

    # -- bytes behind a request, and when they are read

    def _hold(self, data: bytes, at: int) -> None:
        """Keep `data[at:]` until the request before it is answered."""
        self._backlog.hold(data, at)
        if self._backlog.is_full:
            self.flow.hold_reading()
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        """Handle the waiting bytes when this connection's turn has come."""
        backlog = self._backlog
        if (
            backlog.data
            and not backlog.is_due
            and self._slowed is None
            and (self._framer.state >= HEAD or self._is_idle())
        ):
            backlog.is_due = True
            self._turns.wait(self._go_on, self._loop)

    def _go_on(self) -> bool:
        backlog = self._backlog
        backlog.is_due = False
        if self.transport.is_closing():
            return True
        if backlog.data and (self._framer.state >= HEAD or self._is_idle()):
            data, at = backlog.take()
            self._take(data, at)
            if self._slowed is None:
                self._read_on()
        return True

    def _is_idle(self) -> bool:
        """Return whether an answer would be written next, and immediately."""
        cycle = self.cycle
        return (cycle is None or cycle.response_complete) and not self.flow.write_paused

    def _read_on(self) -> None:
        flow, cycle = self.flow, self._receiving
        if self._backlog.is_full:
            flow.hold_reading()
            return
        flow.release_reading()
        # Otherwise the application resumes reading once it has taken the waiting body.
        if not isinstance(cycle, AsgiCycle) or len(cycle.body) <= _MOST_UNTAKEN:
            flow.resume_reading()

    def _read_more(self) -> None:
        """Note that another turn of the event loop has begun."""
        if self._slowed is None and not self.transport.is_closing():
            self._read_on()

    def slow_down(self, refusals: float = 1.0) -> None:
        """Count a refusal. In a flood, delay reading from this client."""
        wait = self._floods.charge(refusals)
        if wait and self._slowed is None and not self.transport.is_closing():
            self.flow.hold_reading()
            self._slowed = self._loop.call_later(wait, self._speed_up)

    def _speed_up(self) -> None:
        self._slowed = None
        if not self.transport.is_closing():
            self._read_on()
            self._go_on_soon()

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._connections.add(self)
        self.transport = transport
        self.flow = Flow(transport)
        self.server = get_local_addr(transport)
        self.client = get_remote_addr(transport)
        self.scheme = "https" if is_ssl(transport) else "http"
        self._floods.charge(ENTRY)
        self._address = str(self.client[0]) if self.client else ""
        self._entry = self._limit.enter(self, self._address, len(self._connections))
        if self._entry is not Entry.FREE:
            self._is_extra = True
            self._short = _NO_PATHS
            self._clocks.keep_alive = _EXTRA_PATIENCE
            if self._entry is Entry.REFUSED:
                transport.abort()
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.names = names_of(certificate)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._limit.leave(self, self._address, len(self._connections))
        cycle = self.cycle
        if isinstance(cycle, Exchange):
            cycle.disconnect()
        elif cycle is not None:
            cycle.drop()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        if self._slowed is not None:
            self._slowed.cancel()
        if self._closing is not None:
            self._closing.cancel()
        elif (
            # The client has sent no request, or half of one.
            cycle is None or self._framer.state >= HEAD
        ):
            is_tls = not self.transport.can_write_eof()
            self._floods.charge(HANDSHAKE if is_tls else 1.0)
        else:
            self._floods.charge(-ENTRY)  # clients may open one for each request
        # A cycle and its connection refer to each other. Their objects must not wait
        # for the garbage collector, which runs rarely.
        if isinstance(cycle, AsgiCycle):
            cycle.scope.pop(CONNECTION, None)
        self.cycle = self._receiving = None
        self._known = None
        self._framer.close()
        self._backlog.clear()
        self._held.give_back()
        self._unsent.give_back()

    def eof_received(self) -> None:
        """Note that the client will send no more."""

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than the answer is written."""
        self.flow.pause_writing()
        self._unsent.set(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        self._unsent.give_back()
        self._go_on_soon()

    def on_exchange_complete(self) -> None:
        """Continue after the answer has been handed to the transport."""
        self.server_state.total_requests += 1
        self._clocks.idle_since = self._loop.time()
        if self._held.size:
            self._held.give_back()
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self._backlog.data:
            self._go_on_soon()

    @property
    def default_headers(self) -> list[Header]:
        """Return the headers of every answer."""
        return self.server_state.default_headers

    def client_of(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the address of the client that sends these headers."""
        return self._dispatch.front.proxies.client_of(self._address, headers)

    def has_asked(self) -> bool:
        """Return whether the head of a request has arrived."""
        return self.cycle is not None

    def evict(self) -> None:
        """Close the connection to make room for another."""
        self.transport.abort()

    def finish(self) -> None:
        """Close the connection after the current answer."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.be_last()

    def shutdown(self) -> None:
        """Close the connection after the current answer.

        A TLS connection closes when its client agrees; the second call closes it
        without that.
        """
        if self.transport.is_closing():
            self._end_closing(self._loop.time(), math.inf)
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.be_last()

    # -- clients that are slow

    def look_after(self, now: float, head: float, body: float, send: float) -> None:
        """Close the connection if its client has exceeded a timeout.

        `head`, `body` and `send` are the timeouts of `Patience`.
        """
        transport = self.transport
        if transport.is_closing():
            self._end_closing(now, send)
            return
        if self._closing is not None:  # its last answer has been sent
            return
        if self._is_extra:
            head = body = _EXTRA_PATIENCE
        framer, cycle = self._framer, self.cycle
        message: object = cycle
        arrived = framer.arrived
        if cycle is None or cycle.response_complete:
            awaited = REST_OF_HEAD if framer.state == HEAD else REQUEST
            # A head must be complete in time, however steadily its bytes arrive.
            message, arrived = framer, framer.begun
        else:
            awaited = ANSWER if self._receiving is None else REST_OF_BODY
        clocks = self._clocks
        unsent = transport.get_write_buffer_size()
        patience = Patience(head, body, send)
        found = clocks.look(now, unsent, awaited, message, arrived, patience)
        if found is Verdict.NOT_TAKEN:
            transport.abort()
        elif found is Verdict.IDLE:
            transport.close()
        elif found is Verdict.HEAD_TOO_SLOW:
            self._end_with(_too_slow(clocks.stood), None, clocks.stood)
        elif found is Verdict.BODY_STOPPED:
            self._end_with(BodyStopped(clocks.stood), cycle, clocks.stood)
        # The event loop does not notice this while it is not reading from the
        # connection.
        elif awaited == ANSWER and self.flow.read_paused and _has_gone(transport):
            transport.abort()

    def _end_closing(self, now: float, send: float) -> None:
        if self._clocks.is_over(self.transport, now, send):
            self.transport.abort()

    # -- the last answer

    def _end_with(
        self,
        error: BaseException,
        cycle: Exchange | AsgiCycle | None,
        stood: float = 0.0,
    ) -> None:
        """Send the connection's last answer: to the request of `cycle`, or to input
        that could not be parsed.

        The request took at least `stood` seconds.
        """
        if cycle is not None and (
            cycle.response_complete
            or (isinstance(cycle, AsgiCycle) and cycle.response_started)
        ):
            self.transport.close()  # the client has the answer, or half of it
            return
        if isinstance(cycle, Exchange):
            asked, headers = cycle.asked(), cycle.headers
        else:
            asked, headers = asked_so_far(self._framer.so_far(), self)
        dispatch = self._dispatch
        self.transport.write(last_answer(dispatch, self, error, asked, headers, stood))
        if cycle is not None:
            cycle.drop()
        self._close_gently()

    def _close_gently(self, refusals: float = 1.0) -> None:
        """Close the connection after the client has had time to read the
        last answer.
        """
        self._receiving = self._known = None
        self._backlog.clear()
        if self.transport.can_write_eof():  # false over TLS
            self.transport.write_eof()
        self.slow_down(max(1.0, refusals))
        if self._slowed is None:
            self._read_on()
        self._closing = self._loop.call_later(_LINGER, self.transport.close)

    @property
    def is_ending(self) -> bool:
        """Return whether the last answer has been sent."""
        return self._closing is not None

    def drop_rest(self, refusals: float) -> None:
        """Refuse the body that is being received, count `refusals`, and answer with the
        connection's last answer.
        """
        if self.cycle is not None:
            self.cycle.drop()
            self._close_gently(refusals + self._framer.chunks * CALL / READ)


def _too_slow(seconds: float) -> HttpError:
    msg = f"the head of the request was not complete after {seconds:.0f} seconds"
    return HttpError(408, msg, "head_too_slow")


def _has_gone(transport: asyncio.Transport) -> bool:
    """Return whether the peer has closed a connection that the server is
    not reading.
    """
    look = select.poll()
    look.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(look.poll(0))
