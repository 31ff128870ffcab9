"""`Ending`: how the server ends a connection, with a last answer if one is owed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic_ns
from typing import Final, Protocol

from app.errors import ErrorResponse, row_of
from app.http.answer_watch import route_of
from app.http.application import Application
from app.http.connection.cycle import AsgiCycle
from app.http.connection.ends import Peer
from app.http.connection.exchange import Exchange
from app.http.connection.framing import CALL, Framer, Head
from app.http.connection.intake import Intake
from app.http.connection.response_framing import STATUS_LINE
from app.http.floods import READ
from app.observe.journal import Asked, Failed
from app.observe.request_ids import id_of

#: For this many seconds the rest of a request is read and dropped before its connection
#: is closed. If a connection is closed with unread bytes, the client loses the answer.
_LINGER: Final = 1.0


class EndingConnection(Peer, Protocol):
    """The part of a connection (protocol.py) that its ending uses."""

    cycle: Exchange | AsgiCycle | None

    def stop_receiving(self) -> None:
        """Expect no further byte of a request."""


class Ending:
    """The end of a connection. `closing` closes it soon; None if it stays open.

    `cancel` ends its part of the circle with its `connection`.
    """

    __slots__ = (
        "_connection",
        "_framer",
        "_front",
        "_intake",
        "_loop",
        "_transport",
        "closing",
    )

    def __init__(
        self,
        connection: EndingConnection,
        front: Application,
        transport: asyncio.Transport,
        framer: Framer,
        intake: Intake,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._connection: EndingConnection | None = connection
        self._front = front
        self._transport = transport
        self._framer = framer
        self._intake = intake
        self._loop = loop
        self.closing: asyncio.TimerHandle | None = None

    @property
    def is_ending(self) -> bool:
        """Return whether the last answer has been sent."""
        return self.closing is not None

    def answer(
        self,
        error: BaseException,
        cycle: Exchange | AsgiCycle | None,
        stalled: float = 0.0,
    ) -> None:
        """Send the connection's last answer: to the request of `cycle`, or to input
        that could not be parsed.

        The request took at least `stalled` seconds.
        """
        transport, connection = self._transport, self._connection
        if connection is None:
            return
        if cycle is not None and (
            cycle.response_complete
            or (isinstance(cycle, AsgiCycle) and cycle.response_started)
        ):
            transport.close()  # the client has the answer, or half of it
            return
        if isinstance(cycle, Exchange):
            asked, headers = cycle.asked(), cycle.headers
        else:
            asked, headers = asked_so_far(self._framer.so_far(), connection)
        transport.write(
            last_answer(self._front, connection, error, asked, headers, stalled)
        )
        if cycle is not None:
            cycle.drop()
        self._close_gently(connection, 1.0)

    def drop_rest(self, refusals: float) -> None:
        """Refuse the body that is being received, and count `refusals`. The request has
        its answer, the connection's last.
        """
        connection = self._connection
        if connection is not None and connection.cycle is not None:
            connection.cycle.drop()
            refusals += self._framer.chunks * CALL / READ
            self._close_gently(connection, max(1.0, refusals))

    def slow_down(self, refusals: float = 1.0) -> None:
        """Count a refusal. In a flood, delay reading from this client."""
        self._intake.slow_down(refusals)

    def _close_gently(self, connection: EndingConnection, refusals: float) -> None:
        """Close the connection after the client has had time to read the last
        answer.
        """
        connection.stop_receiving()
        self._intake.backlog.clear()
        if self._transport.can_write_eof():  # false over TLS
            self._transport.write_eof()
        self._intake.slow_down(refusals)
        self._intake.read_on()
        self.closing = self._loop.call_later(_LINGER, self._transport.close)

    def cancel(self) -> None:
        """Note that the connection is closed."""
        if self.closing is not None:
            self.closing.cancel()
        self._connection = None

    def __repr__(self) -> str:
        return f"<Ending{', begun' if self.is_ending else ''}>"


def last_answer(
    front: Application,
    peer: Peer,
    error: BaseException,
    asked: Asked,
    headers: Mapping[bytes, bytes],
    stalled: float,
) -> bytes:
    """Return the bytes of an answer to a request that has not become a `Call`.

    The answer is counted and logged. The request took at least `stalled` seconds.
    """
    answer = ErrorResponse.of(error, asked.request_id, close=True)
    lines = b"".join(b"%b: %b\r\n" % header for header in answer.headers)
    lines += front.lines_for_origin(headers.get(b"origin"))
    service, code = front.service, row_of(error).code
    route = route_of(asked.path.removeprefix(peer.base), asked.method)
    key = front.access.label(headers, peer.ends.names)
    service.answers.count(route, answer.status, code, key)
    now, why = monotonic_ns(), str(error)
    service.journal.fail(Failed(asked, None, answer.status, code, why, now, stalled))
    return b"%b%bx-request-id: %b\r\n\r\n%b" % (
        STATUS_LINE[answer.status],
        lines,
        asked.request_id,
        answer.body,
    )


def asked_so_far(head: Head | None, peer: Peer) -> tuple[Asked, Mapping[bytes, bytes]]:
    """Return the part of a message read so far, and its headers.

    `head` is None if the URL has not arrived.
    """
    if head is None:
        return Asked(id_of({}), "-", "-", peer.client_of({})), {}
    headers = dict(head.headers)
    asked = Asked(
        id_of(headers),
        head.method.decode(),
        head.target.decode("latin-1"),
        peer.client_of(headers),
        headers.get(b"traceparent", b""),
    )
    return asked, headers
