"""One inference request on a connection, answered without ASGI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import ClassVar, Final, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.codec.chunks import JOIN_BELOW
from app.codec.messages import Body, Buffer, Response
from app.errors import ErrorResponse
from app.http.front import InferFront
from app.http.transfer_memory import SMALL
from app.serving.infer_call import InferCall
from app.serving.table import Submitted
from engine import Cancelled, DeadlineExceeded

#: To a request whose failure cannot be told any better, for want of memory.
_BODY: Final = b'{"error":"there is no memory for an answer","code":"internal_error"}'
_NO_ANSWER: Final = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class Connection(Protocol):
    """The connection of an exchange (app/http/protocol.py), as far as that uses it."""

    front: InferFront
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def common_head(self) -> bytes: ...
    def on_exchange_complete(self) -> None: ...


class _Event:
    """What uvicorn sets on a cycle to wake its task; there is none here."""

    def set(self) -> None:
        """Nobody waits."""


class Exchange:
    """A request that is answered without ASGI; in place of uvicorn's cycle."""

    message_event: ClassVar[_Event] = _Event()

    __slots__ = (
        "arrived",
        "body",
        "call",
        "disconnected",
        "headers",
        "is_large",
        "is_past_parser",
        "keep_alive",
        "loading",
        "missing",
        "path",
        "protocol",
        "response_complete",
        "timer",
    )

    def __init__(self, protocol: Connection, path: str, keep_alive: bool) -> None:
        self.protocol = protocol
        self.path = path
        self.keep_alive = keep_alive
        self.headers: Mapping[bytes, bytes] = {}
        self.body: Body = []
        self.call: InferCall | None = None
        self.arrived = 0  # when its head came, where that is traced
        self.missing = 0  # bytes of the body that have yet to come
        self.is_past_parser = False
        self.is_large = False  # so that its decoding might take long
        self.timer: asyncio.TimerHandle | None = None
        self.loading: asyncio.Task[None] | None = None
        self.disconnected = False
        self.response_complete = False

    def begin(self, front: InferFront) -> None:
        """The body is complete: decode it and queue the request."""
        # Looked up now: the model may have been swapped while the body came.
        entry = front.models.paths.get(self.path)
        if entry is None:
            self.loading = self.protocol.loop.create_task(self._load(front))
            return
        self._start(front, InferCall(entry))

    async def _load(self, front: InferFront) -> None:
        """The model has left memory while the body came: have it loaded, or refuse."""
        try:
            entry, waited = await front.load_on_demand(
                self.path, self.headers, self.body
            )
        except Exception as error:
            self._refuse(error)
            return
        if self.disconnected:
            self.response_complete = True
            return
        call = InferCall(entry)
        call.waited(waited)
        self._start(front, call)

    def _start(self, front: InferFront, call: InferCall) -> None:
        self.call = call
        call.arrived = self.arrived
        body, self.body = self.body, []
        try:
            if self.is_large and call.entry.codec(front.limits).takes_long(
                self.headers, body
            ):
                self.loading = self.protocol.loop.create_task(
                    self._start_later(front, call, body)
                )
                return
            submitted = call.start(
                self.headers, body, front.limits, front.timeout, self.done
            )
        except Exception as error:
            self.call = None
            self._fail(call, error)
            return
        self._expire_in_time(call, submitted)

    async def _start_later(
        self, front: InferFront, call: InferCall, body: Body
    ) -> None:
        """`_start`, decoding where nobody waits for it."""
        try:
            request = await front.decode_elsewhere(self.path, call, self.headers, body)
            if self.disconnected:
                raise asyncio.CancelledError
            submitted = call.queue(request, self.headers, front.timeout, self.done)
        except asyncio.CancelledError:
            self.call = None
            self.response_complete = True
            call.forget()
        except Exception as error:
            self.call = None
            self._fail(call, error)
        else:
            self._expire_in_time(call, submitted)

    def _expire_in_time(self, call: InferCall, submitted: Submitted) -> None:
        if call.is_exact and not submitted.done:
            left = max(0.0, call.deadline - time.monotonic())
            self.timer = self.protocol.loop.call_later(left, self.expire)

    def done(self, submitted: Submitted) -> None:
        """Called when the request is done, however it ended; never raises."""
        if self.timer is not None:
            self.timer.cancel()
        call, self.call = self.call, None
        if call is None or self.response_complete:
            return
        if self.disconnected:
            self.response_complete = True
            call.forget()
            return
        front = self.protocol.front
        try:
            if front.transfers.is_full and call.is_answer_above(SMALL, submitted):
                raise front.transfers.refusal()
            response = call.finish(front.limits, submitted)
        except Exception as error:
            self._fail(call, error)
            return
        self._write(response)
        if call.entry.tracer is not None:
            call.sent()

    def expire(self) -> None:
        """The deadline that the client asked for has passed."""
        submitted = self.call and self.call.submitted
        if submitted and not submitted.done:
            submitted.abandon(DeadlineExceeded())

    def disconnect(self) -> None:
        """The client has gone: give up what it asked for, and all that it sent."""
        self.disconnected = True
        self.body = []
        if self.loading is not None:
            self.loading.cancel()
        submitted = self.call and self.call.submitted
        if submitted and not submitted.done:
            submitted.abandon(Cancelled("the client has disconnected"))

    def give_up(self) -> None:
        """The rest of its body will not come, and it has been answered."""
        self.body = []
        self.response_complete = True

    def _fail(self, call: InferCall, error: Exception) -> None:
        try:
            call.fail(error)
        finally:
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        try:
            answer = ErrorResponse.of(error)
            response = Response(answer.status, answer.headers, [answer.body])
        except Exception:
            self._give_out()
            raise
        self._write(response)

    def _write(self, response: Response) -> None:
        self.response_complete = True
        if self.protocol.transport.is_closing():
            return
        try:
            self._send(response)
        except Exception:
            # Nobody knows how much of the answer has gone.
            self.protocol.transport.abort()
            raise

    def _give_out(self) -> None:
        """The last way to answer: it needs nothing that is not there already."""
        self.response_complete = True
        transport = self.protocol.transport
        if not transport.is_closing():
            transport.write(_NO_ANSWER)
            transport.close()

    def _send(self, response: Response) -> None:
        protocol = self.protocol
        transport = protocol.transport
        pieces: list[Buffer] = [STATUS_LINE[response.status], protocol.common_head()]
        if response.head is not None:
            pieces.append(response.head.lines)
        else:
            for name, value in response.headers:
                pieces += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            pieces.append(b"connection: close\r\n")
        pieces.append(b"\r\n")
        parts = response.parts
        if response.nbytes <= JOIN_BELOW:
            pieces += parts
            transport.write(b"".join(pieces))
        else:
            # In one call to the system: a small write of its own wakes the client.
            transport.writelines([b"".join(pieces), *parts])
        if not self.keep_alive:
            transport.close()
        protocol.on_exchange_complete()

    def __repr__(self) -> str:
        return f"<Exchange {self.path} {self.call!r}>"
