"""`Watch`: what happens to a connection whose client is too slow."""

from __future__ import annotations

import asyncio
import select

from app.errors import BodyStopped, HttpError, RequestError
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
from app.http.connection.exchange import Exchange
from app.http.connection.flow import Flow
from app.http.connection.framing import HEAD, Framer
from app.http.connection.stalls import has_unread


class Watch:
    """Checks the clocks of a connection, and closes it if its client is too slow."""

    __slots__ = ("_clocks", "_flow", "_framer", "_transport")

    def __init__(
        self, clocks: Clocks, framer: Framer, transport: asyncio.Transport, flow: Flow
    ) -> None:
        self._clocks = clocks
        self._framer = framer
        self._transport = transport
        self._flow = flow

    def look(
        self,
        now: float,
        cycle: Exchange | AsgiCycle | None,
        receiving: Exchange | AsgiCycle | None,
        patience: Patience,
    ) -> RequestError | None:
        """Close the connection if its client has exceeded a timeout. If the client is
        owed an answer first, return it.

        `cycle` is the last request, `receiving` the one whose body is arriving.
        """
        transport = self._transport
        if transport.is_closing():
            self.end_closing(now, patience.send)
            return None
        framer = self._framer
        message: object = cycle
        arrived = framer.arrived
        if cycle is None or cycle.response_complete:
            awaited = REST_OF_HEAD if framer.state == HEAD else REQUEST
            # A head must be complete in time, however steadily its bytes arrive.
            message, arrived = framer, framer.begun
        else:
            awaited = REST_OF_BODY if receiving is not None else ANSWER
        clocks = self._clocks
        unsent = transport.get_write_buffer_size()
        found = clocks.look(now, unsent, awaited, message, arrived, patience)
        if found is Verdict.STAYS:
            # The event loop notices no client that goes while it reads nothing.
            if awaited == ANSWER and self._flow.read_paused and _has_gone(transport):
                transport.abort()
        elif found is Verdict.NOT_TAKEN:
            transport.abort()
        elif has_unread(transport):
            pass
        elif found is Verdict.HEAD_TOO_SLOW:
            return _too_slow(clocks.stalled)
        elif found is Verdict.BODY_STOPPED:
            return BodyStopped(clocks.stalled)
        else:
            transport.close()
        return None

    def end_closing(self, now: float, send: float) -> None:
        """End a closed connection if its client has taken everything, or has taken
        nothing for `send` seconds.
        """
        if self._clocks.is_over(self._transport, now, send):
            self._transport.abort()

    def __repr__(self) -> str:
        return f"<Watch {self._clocks!r}>"


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
