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
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from uvicorn import Config
from uvicorn.server import ServerState

from app.errors import TransferMemoryFull
from app.http.asgi import CONNECTION
from app.http.connection.backlog import Backlog
from app.http.connection.clocks import Clocks, Patience
from app.http.connection.counted_connection import CountedConnection
from app.http.connection.cycle import AsgiCycle
from app.http.connection.dispatch import Dispatch, check_extra
from app.http.connection.ending import Ending
from app.http.connection.ends import Ends, ends_of
from app.http.connection.exchange import CommonHead, Exchange
from app.http.connection.flow import Flow
from app.http.connection.framing import CALL, HEAD, IDLE, PAST, Framer, Head
from app.http.connection.intake import Intake
from app.http.connection.known_head import KnownHead
from app.http.connection.turns import Turns
from app.http.connection.watch import Watch
from app.http.connection_limit import ConnectionLimit, Entry
from app.http.floods import DROPPED, Floods
from app.serving.transfer_memory import Share

#: Bytes of heads and of chunked bodies that are parsed in one turn.
_IN_A_TURN: Final = 64 * 1024
#: If this many requests in a row differ, no head is remembered any more.
_UNLIKE: Final = 8
#: The timeout in seconds of connections that are let in beyond the limit.
_EXTRA_PATIENCE: Final = 1.0
_NO_PATHS: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Listener:
    """The parts that all connections of one listening socket share. For the event
    loop's thread.
    """

    dispatch: Dispatch
    floods: Floods
    limit: ConnectionLimit
    common: CommonHead = field(default_factory=CommonHead)
    turns: Turns = field(default_factory=Turns)


class GatewayProtocol(asyncio.Protocol):
    """One connection of a `listener`. The other arguments are the server's."""

    # `connection_made` sets these. The event loop calls nothing before.
    transport: asyncio.Transport
    ends: Ends
    flow: Flow
    ending: Ending
    _intake: Intake
    _backlog: Backlog
    _watch: Watch
    _counted: CountedConnection

    def __init__(
        self,
        listener: Listener,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop,
    ) -> None:
        dispatch = listener.dispatch
        self._listener = listener
        self._dispatch = dispatch
        self._service = dispatch.service
        self._access = dispatch.access
        # The paths of requests that can become exchanges.
        self._short: dict[str, Any] = dispatch.short
        self.common = listener.common
        self._loop = _loop
        self.server_state = server_state
        self._app_state = app_state
        # Whether the connection is beyond a limit.
        self._is_extra = False
        self._framer = Framer()
        self._clocks = Clocks(config.timeout_keep_alive, _loop.time())
        # The last request with a head, and the request whose body is arriving.
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
        # Of the transfer memory, for a large body and what it is decoded to.
        self.held = Share(self._service.transfers)

    # -- input from the client

    def data_received(self, data: bytes) -> None:
        if (
            self._receiving is not None
            or self._known is None
            or not self._answer_known(data)
        ):
            self.read_message(data, 0)

    def _answer_known(self, data: bytes) -> bool:
        """Start `data` if it is a whole request like the last; return whether it is."""
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
            self.ending.answer(error, exchange)
        return True

    def read_message(self, data: bytes, at: int) -> None:
        """Read one message of `data[at:]`, or what has come of it; hold the rest."""
        framer = self._framer
        learns = at == 0 and framer.state == IDLE and self._unlike < _UNLIKE
        self._known = None
        has_ended = False
        size, work = len(data), 0
        while at < size:
            if self.ending.closing is not None:  # no further request is answered
                self._intake.slow_down((size - at) / DROPPED)
                self._intake.spend(size - at)
                return
            is_next = framer.state >= HEAD or (not has_ended and self._is_idle())
            if self._backlog.data or work >= _IN_A_TURN or not is_next:
                self._intake.hold(data, at)
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
                    receiving.receive_body(framer.body)
                if framer.has_ended:
                    has_ended = True
                    self._end_message(receiving)
            except Exception as error:
                self.ending.answer(error, self._receiving)
                return
            if framer.error is not None:
                self.ending.answer(framer.error, self._receiving)
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
            exchange = dispatch.exchange(head, self, self.ends.names)
            if exchange is not None:
                self.cycle = self._receiving = exchange
                return
        else:
            check_extra(head, self._counted.entry)
        scope = dispatch.scope(head, self, self.ending, self._app_state)
        cycle = AsgiCycle(scope, head, self)
        if self._is_extra:
            cycle.be_last()
        self.cycle = self._receiving = cycle
        loop, tasks = self._loop, self.server_state.tasks
        self._listener.turns.wait(partial(dispatch.run, cycle, loop, tasks), loop)

    def _count_body(self, exchange: Exchange, size: int) -> bool:
        """Count `size` bytes of a large body. Return whether there is memory for it."""
        try:
            self.held.add(size)
        except TransferMemoryFull as full:
            self.ending.answer(full, exchange)
            self.held.give_back()
            return False
        if not self._framer.has_ended:
            self._intake.spend(size)
        return True

    def _end_message(self, cycle: Exchange | AsgiCycle | None) -> None:
        """Handle the end of a request."""
        if isinstance(cycle, Exchange):
            cycle.begin()
        elif cycle is not None:
            cycle.end_body()
        self._receiving = None

    def _remember(self, data: bytes) -> None:
        """Remember the head of `data`, which was exactly one request."""
        begun = self.cycle
        if isinstance(begun, Exchange) and begun.keep_alive:
            self._unlike += 1
            if self._unlike > 0:  # many connections carry only one request
                self._known = self._dispatch.known(data, begun)

    # -- what the parts of the connection ask

    def is_ready(self) -> bool:
        """Return whether waiting bytes can be handled now."""
        return self._framer.state >= HEAD or self._is_idle()

    def wants_more(self) -> bool:
        """Return whether the application has taken the body received so far."""
        cycle = self._receiving
        return not isinstance(cycle, AsgiCycle) or cycle.wants_more()

    def stop_receiving(self) -> None:
        """Expect no further byte of a request."""
        self._receiving = self._known = None

    def _is_idle(self) -> bool:
        """Return whether an answer would be written next, and immediately."""
        cycle = self.cycle
        return (cycle is None or cycle.response_complete) and not self.flow.write_paused

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        front, listener, loop = self._dispatch.front, self._listener, self._loop
        self.transport, self.ends = transport, ends_of(transport)
        self.flow = flow = Flow(transport, Share(self._service.transfers))
        floods, connections = listener.floods, self.server_state.connections
        intake = Intake(self, transport, flow, listener.turns, floods, loop)
        self._intake, self._backlog = intake, intake.backlog
        self.ending = Ending(self, front, transport, self._framer, intake, loop)
        self._watch = Watch(self._clocks, self._framer, transport, flow)
        self._counted = CountedConnection(
            self, self.ends.address, connections, listener.limit, floods
        )
        if self._counted.entry is not Entry.FREE:
            self._is_extra = True
            self._short = _NO_PATHS
            self._clocks.keep_alive = _EXTRA_PATIENCE
            if self._counted.entry is Entry.REFUSED:
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._counted.leave(self)
        cycle = self.cycle
        if isinstance(cycle, Exchange):
            cycle.disconnect()
        elif cycle is not None:
            cycle.drop()
            # A cycle and its connection refer to each other. Their objects must not
            # wait for the garbage collector, which runs rarely.
            cycle.scope.pop(CONNECTION, None)
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        if not self.ending.is_ending:  # otherwise its refusal has been counted
            # The client has sent no request, or half of one.
            was_idle = cycle is None or self._framer.state >= HEAD
            self._counted.judge(was_idle, is_tls=not self.transport.can_write_eof())
        self.cycle = None
        self.stop_receiving()
        self._framer.close()
        self._intake.close()
        self.ending.cancel()
        self.held.give_back()

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than the answer is written."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        self._intake.go_on_soon()

    def on_exchange_complete(self) -> None:
        """Continue after the answer has been handed to the transport."""
        self.server_state.total_requests += 1
        self._clocks.idle_since = self._loop.time()
        if self.held.size:
            self.held.give_back()
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self._backlog.data:
            self._intake.go_on_soon()

    def client_of(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the address of the client that sends these headers."""
        return self._dispatch.front.proxies.client_of(self.ends.address, headers)

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
        """Close the connection after the current answer. A TLS connection closes when
        its client agrees, or with the second call.
        """
        if self.transport.is_closing():
            self._watch.end_closing(self._loop.time(), math.inf)
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.be_last()

    def look_after(self, now: float, patience: Patience) -> None:
        """Close the connection if its client has exceeded a timeout."""
        if self._is_extra:
            patience = Patience(_EXTRA_PATIENCE, _EXTRA_PATIENCE, patience.send)
        if not self.ending.is_ending or self.transport.is_closing():
            error = self._watch.look(now, self.cycle, self._receiving, patience)
            if error is not None:
                self.ending.answer(error, self._receiving, self._clocks.stalled)
