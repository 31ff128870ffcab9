"""`Flow`: whether the server reads from a connection, and whether the client reads."""

from __future__ import annotations

import asyncio

from app.serving.transfer_memory import Share


class Flow:
    """Reading stops for two reasons.

    Either the application has not yet taken the body received so far (`pause_reading`),
    or the connection has to wait (`hold_reading`). `resume_reading` of the application
    does not end the second.

    `unsent` is the share of the transfer memory for an answer that the client does not
    read.
    """

    __slots__ = (
        "_transport", "_unsent", "_writable", "is_held", "read_paused", "write_paused",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, unsent: Share) -> None:
        self._transport = transport
        self._unsent = unsent
        self._writable = asyncio.Event()
        self._writable.set()
        self.is_held = False
        self.read_paused = False
        self.write_paused = False

    def hold_reading(self) -> None:
        """Stop reading until `release_reading`."""
        self.is_held = True
        self.pause_reading()

    def release_reading(self) -> None:
        """Allow `resume_reading` to continue reading."""
        self.is_held = False

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused and not self.is_held:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable.clear()
        self._unsent.set(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.write_paused = False
        self._writable.set()
        self._unsent.give_back()

    async def drain(self) -> None:
        """Wait until the client has read most of the written bytes."""
        await self._writable.wait()

    def __repr__(self) -> str:
        reads = "held" if self.is_held else "paused" if self.read_paused else "read"
        return f"<Flow {reads}{', not taken' if self.write_paused else ''}>"
