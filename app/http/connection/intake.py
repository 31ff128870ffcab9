"""`Intake`: when bytes of a connection are read, and when they are handled."""

from __future__ import annotations

import asyncio
from typing import Protocol

from app.http.connection.backlog import Backlog
from app.http.connection.flow import Flow
from app.http.connection.turns import Turns
from app.http.floods import Floods


class MessageReader(Protocol):
    """The part of a connection (protocol.py) that its intake uses."""

    def read_message(self, data: bytes, at: int) -> None:
        """Read one message of `data[at:]`, or the part received so far."""

    def is_ready(self) -> bool:
        """Return whether waiting bytes can be handled now."""

    def wants_more(self) -> bool:
        """Return whether the application has taken the body received so far."""


class Intake:
    """The waiting bytes of a connection, and the delay of a client in a flood.

    `close` ends its part of the circle with its `reader`.
    """

    __slots__ = (
        "_floods",
        "_flow",
        "_loop",
        "_reader",
        "_slowed",
        "_transport",
        "_turns",
        "backlog",
        "is_due",
    )

    def __init__(
        self,
        reader: MessageReader,
        transport: asyncio.Transport,
        flow: Flow,
        turns: Turns,
        floods: Floods,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._reader: MessageReader | None = reader
        self._transport = transport
        self._flow = flow
        self._turns = turns
        self._floods = floods
        self._loop = loop
        self._slowed: asyncio.TimerHandle | None = None
        self.backlog = Backlog()
        #: Whether the waiting bytes have a turn.
        self.is_due = False

    def hold(self, data: bytes, at: int) -> None:
        """Keep `data[at:]` until the request before it is answered."""
        self.backlog.hold(data, at)
        if self.backlog.is_full:
            self._flow.hold_reading()
        self.go_on_soon()

    def go_on_soon(self) -> None:
        """Handle the waiting bytes when this connection's turn has come."""
        backlog, reader = self.backlog, self._reader
        if (
            backlog.data
            and not self.is_due
            and self._slowed is None
            and reader is not None
            and reader.is_ready()
        ):
            self.is_due = True
            self._turns.wait(self._go_on, self._loop)

    def _go_on(self) -> bool:
        backlog, reader = self.backlog, self._reader
        self.is_due = False
        if self._transport.is_closing() or reader is None:
            return True
        if backlog.data and reader.is_ready():
            data, at = backlog.pop()
            reader.read_message(data, at)
            self.read_on()
        return True

    def read_on(self) -> None:
        """Read from the client, unless there is a reason to wait."""
        flow, reader = self._flow, self._reader
        if self._slowed is not None or reader is None or self._transport.is_closing():
            return
        if self.backlog.is_full:
            flow.hold_reading()
            return
        flow.release_reading()
        # Otherwise the application resumes reading once it has taken the waiting body.
        if reader.wants_more():
            flow.resume_reading()

    def spend(self, size: int) -> None:
        """Count `size` bytes of a large body, or of one that is dropped. Read on in a
        later turn if this turn's reads are used up.
        """
        reads = self._turns.reads
        if reads.spend(size, self._loop):
            self._flow.hold_reading()
            reads.wait(self.read_on)

    def slow_down(self, refusals: float = 1.0) -> None:
        """Count a refusal. In a flood, delay reading from this client."""
        wait = self._floods.charge(refusals)
        if wait and self._slowed is None and not self._transport.is_closing():
            self._flow.hold_reading()
            self._slowed = self._loop.call_later(wait, self._speed_up)

    def _speed_up(self) -> None:
        self._slowed = None
        self.read_on()
        self.go_on_soon()

    def close(self) -> None:
        """Drop the waiting bytes, and read no more."""
        if self._slowed is not None:
            self._slowed.cancel()
        self.backlog.clear()
        self._reader = None

    def __repr__(self) -> str:
        slowed = ", slowed down" if self._slowed is not None else ""
        return f"<Intake {self.backlog!r}{slowed}>"
