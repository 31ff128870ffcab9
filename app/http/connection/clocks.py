"""`Clocks`: how long a client has been idle, has sent nothing, or has read nothing.

The server checks all connections every few seconds, instead of a timer for each
request.
"""

from __future__ import annotations

import asyncio
import enum
from typing import Final, NamedTuple

from app.http.connection.stalls import Stall, acknowledged, is_all_taken

#: What a connection waits for: the next request, the rest of a head, the rest of a
#: body, or the answer to a request.
REQUEST: Final = 0
REST_OF_HEAD: Final = 1
REST_OF_BODY: Final = 2
ANSWER: Final = 3


class Patience(NamedTuple):
    """Timeouts in seconds: for a whole head, for a pause within a body, and for a
    client that reads nothing of its answer.
    """

    head: float
    body: float
    send: float


class Verdict(enum.Enum):
    """Result of the check of a connection."""

    STAYS = enum.auto()
    #: Nothing has happened on the connection for too long.
    IDLE = enum.auto()
    #: The client does not read the data that is ready for it.
    NOT_TAKEN = enum.auto()
    #: `Clocks.stalled` says for how long.
    HEAD_TOO_SLOW = enum.auto()
    BODY_STOPPED = enum.auto()


class Clocks:
    """The clocks of one connection, which may be idle for `keep_alive` seconds."""

    __slots__ = (
        "_is_closed",
        "_receiving",
        "_sending",
        "idle_since",
        "keep_alive",
        "stalled",
    )

    def __init__(self, keep_alive: float, now: float) -> None:
        self.keep_alive = keep_alive
        self.idle_since = now
        #: The seconds without new data at the last check.
        self.stalled = 0.0
        self._receiving = Stall()
        self._sending = Stall()
        # Whether the connection was closed at the last check.
        self._is_closed = False

    def look(
        self,
        now: float,
        unsent: int,
        awaited: int,
        message: object,
        arrived: int,
        patience: Patience,
    ) -> Verdict:
        """Judge an open connection that waits for `awaited`.

        `unsent` are bytes that the client has not taken. `arrived` is any number that
        changes when a part of the `message` arrives.
        """
        if unsent:
            self.idle_since = now
            if self._sending.stalled_for(self, unsent, now) > patience.send:
                return Verdict.NOT_TAKEN
        else:
            self._sending.forget()
        if awaited in (REST_OF_HEAD, REST_OF_BODY):
            self.stalled = self._receiving.stalled_for(message, arrived, now)
            if awaited == REST_OF_BODY:
                late = self.stalled > patience.body
                return Verdict.BODY_STOPPED if late else Verdict.STAYS
            if self.stalled > patience.head:
                return Verdict.HEAD_TOO_SLOW
        else:
            self._receiving.forget()
        if awaited != ANSWER and now - self.idle_since >= self.keep_alive:
            return Verdict.IDLE
        return Verdict.STAYS

    def is_over(self, transport: asyncio.Transport, now: float, send: float) -> bool:
        """Return whether a closed connection can be ended.

        It can if its client has taken everything, or has taken nothing for `send`
        seconds.
        """
        if self._is_closed and is_all_taken(transport):
            return True
        self._is_closed = True  # first let the last write go out
        taken = acknowledged(transport)
        return self._sending.stalled_for(transport, taken, now) > send

    def __repr__(self) -> str:
        return f"<Clocks idle since {self.idle_since:.1f}>"
