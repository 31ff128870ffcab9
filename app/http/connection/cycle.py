"""`AsgiCycle`: a request on a connection that an ASGI application answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from uvicorn.server import ServerState

from app.errors import ErrorResponse, error_body
from app.http.asgi import WHOLE, ASGIApp, Message, Scope, send_error
from app.http.connection.flow import Flow
from app.http.connection.framing import Head
from app.http.connection.response_framing import CLOSE_HEADER, ResponseFramer
from engine import Buffer

#: The server stops reading if the application has not taken this many bytes.
_MOST_UNTAKEN: Final = 64 * 1024
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_FAILED: Final = error_body(
    "internal error; the server's log has the details", "internal_error"
)


class DropsRest(Protocol):
    """The part of an ending (ending.py) that a cycle uses."""

    def drop_rest(self, refusals: float) -> None: ...


class CycleConnection(Protocol):
    """The part of a connection (protocol.py) that a cycle uses."""

    @property
    def ending(self) -> DropsRest: ...
    @property
    def transport(self) -> asyncio.Transport: ...
    @property
    def flow(self) -> Flow: ...
    @property
    def server_state(self) -> ServerState: ...

    def on_exchange_complete(self) -> None: ...


class AsgiCycle:
    """The ASGI messages of one request, both ways."""

    def __init__(self, scope: Scope, head: Head, connection: CycleConnection) -> None:
        self.scope = scope
        self.head = head
        self.logger = logging.getLogger(__name__)
        self.body = bytearray()
        self.more_body = True
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self._connection = connection
        # An older client does not know what 100 means (RFC 9110, 10.1.1).
        self._expects_continue = head.version != "1.0" and any(
            name == b"expect" and value.lower() == b"100-continue"
            for name, value in head.headers
        )
        self._framer = ResponseFramer(
            head.keep_alive, head.method == b"HEAD", head.version == "1.1"
        )
        self._changed = asyncio.Event()

    # -- calls from the connection

    def receive_body(self, parts: list[Buffer]) -> None:
        """Receive another part of the body, unless the answer is complete."""
        if self.response_complete or self.disconnected or not parts:
            return
        for part in parts:
            self.body += part
        if not self.wants_more():
            self._connection.flow.pause_reading()
        self._changed.set()

    def wants_more(self) -> bool:
        """Return whether the application has taken most of the body so far."""
        return len(self.body) <= _MOST_UNTAKEN

    def end_body(self) -> None:
        """Note that the body is complete."""
        self.more_body = False
        self._changed.set()

    def be_last(self) -> None:
        """Close the connection after this answer, and announce it in the head if
        possible.
        """
        self._framer.keep_alive = False

    def drop(self) -> None:
        """Drop the rest of the body and the answer: the client has disconnected."""
        self.disconnected = True
        self.body = bytearray()
        self._changed.set()

    # -- ASGI

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            self.logger.error("the application failed", exc_info=error)
        else:
            if self.disconnected or self.response_complete:
                return
            self.logger.error("the application has not completed its answer")
        if self.response_started:
            self._connection.transport.close()
        else:
            await send_error(self.send, ErrorResponse(500, _FAILED, (CLOSE_HEADER,)))

    async def send(self, message: Message) -> None:
        connection = self._connection
        if connection.flow.write_paused and not self.disconnected:
            await connection.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        framer = self._framer
        if not self.response_started and kind == "http.response.start":
            self.response_started = True
            if self._expects_continue and self.more_body and not self.body:
                # The client may keep the body, and send a request in its place.
                self.be_last()
            self._expects_continue = False
            given = message.get("headers", ())
            headers = [*connection.server_state.default_headers, *given]
            connection.transport.write(framer.head(message["status"], headers))
        elif (
            self.response_started
            and not self.response_complete
            and kind == "http.response.body"
        ):
            more = message.get("more_body", False)
            part = framer.body(message.get("body", b""), more)
            connection.transport.write(part)
            if not more:
                self.response_complete = True
                self._changed.set()
                if not (framer.keep_alive or self.more_body):
                    connection.transport.close()
                connection.on_exchange_complete()
                if not framer.keep_alive and self.more_body:
                    connection.ending.drop_rest(0.0)
        else:
            raise RuntimeError(f"unexpected ASGI message {kind!r}")

    async def receive(self) -> Message:
        connection = self._connection
        if self._expects_continue and not connection.transport.is_closing():
            connection.transport.write(_CONTINUE)
            self._expects_continue = False
        if not (self.disconnected or self.response_complete):
            connection.flow.resume_reading()
            await self._changed.wait()
            self._changed.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect", WHOLE: not self.more_body}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def __repr__(self) -> str:
        return f"<AsgiCycle {self.head.method!r} {self.head.target!r}>"
