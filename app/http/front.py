"""The infer path: one raw ASGI callable that stands in front of everything else.

It takes POST on the paths of the model table and hands all other requests on. A request
goes: body (chunks, never joined here), decode, submit, wait, encode, send. There is no
thread hop in it, and one await that waits: for the device to resolve the request.

Nobody waits for ever and nobody computes for a client that has gone. One timer of the
whole front looks after the requests that are under way; only those that take longer
than that pay for a task that watches for the client to disconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from app.background import DaemonPool
from app.codec.compression import (
    Coding,
    CompressResponses,
    ResponseCodings,
    compress,
    inflate,
)
from app.codec.media import is_json_only
from app.codec.messages import Body, InferRequest, Response
from app.codec.model import ModelCodec
from app.codec.preamble import read_preamble
from app.config.restrictions import Restrictions
from app.errors import (
    BodyTooLarge,
    ErrorResponse,
    HttpError,
    InvalidRequest,
    ModelNotReady,
    RequestError,
    TransferMemoryFull,
    UnknownModel,
    larger_than_allowed,
)
from app.http.asgi import (
    ASGIApp,
    ClientGone,
    Receive,
    Scope,
    Send,
    send_error,
    send_response,
)
from app.http.streaming import ResponseStream, send_events, wants_events
from app.http.transfer_memory import SMALL, Share, TransferMemory
from app.limits import DEFAULT_LIMITS, Limits
from app.serving.infer_call import InferCall
from app.serving.patience import Patience, header_timeout
from app.serving.table import ModelEntry, ModelTable
from app.serving.waiting import Waiting, WaitingRequests
from engine import Cancelled, EngineError

__all__ = ["InferFront", "ModelEntry", "ModelTable"]

T = TypeVar("T")

# The longest a request takes where nobody says otherwise, in seconds.
DEFAULT_TIMEOUT = 60.0
# How long, and of how many bytes, the rest of a refused body is read and dropped: a
# client that is still sending when the connection is closed never sees the answer.
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 64 << 20
# Responses up to this size are compressed at once (under a millisecond), larger ones,
# and all bodies that come compressed (which may become large), in a thread.
_COMPRESS_AT_ONCE = 64 * 1024


class BodyRefused(Exception):
    """The body is too long; `is_read` where nothing of it is left to read."""

    def __init__(self, why: BodyTooLarge, *, is_read: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_read = is_read


class InferFront:
    """Serves inference; everything else goes to `fallback`.

    `timeout` (seconds) holds for requests that state none: neither by the request
    parameter ``timeout`` (microseconds) nor by the header ``X-Request-Timeout``
    (seconds), and whose model has none either. `restrictions` hold for all requests,
    also those that go on to `fallback`. `transfers` bounds what bodies and answers
    take together.
    """

    def __init__(
        self,
        fallback: ASGIApp,
        models: ModelTable,
        limits: Limits = DEFAULT_LIMITS,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        compress_responses: CompressResponses = CompressResponses.ASKED,
        base_path: str = "",
        restrictions: Restrictions | None = None,
        transfers: TransferMemory | None = None,
    ) -> None:
        self.fallback = fallback
        self.models = models
        self.limits = limits
        self.timeout = timeout
        self.base_path = base_path.encode()
        self.restrictions = restrictions or Restrictions()
        self.restricts_inference = "inference" in self.restrictions.groups
        self._codings = ResponseCodings(compress_responses)
        self._waiting = WaitingRequests()
        self.transfers = transfers or TransferMemory()
        # One: with several, the event loop would have its turn less often.
        self._decoding = DaemonPool(1, "popgate-decode")
        self._inflating = DaemonPool(2, "popgate-inflate")

    def coding_for(self, headers: Mapping[bytes, bytes]) -> Coding | None:
        """How the answer to a request with these headers is to be compressed."""
        accept = headers.get(b"accept-encoding")
        return None if accept is None else self._codings.choose(accept)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.fallback(scope, receive, send)
            return
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]
        if self.restrictions:
            try:
                self.restrictions.check(path, dict(scope["headers"]))
            except HttpError as error:
                # Whatever body there is stays unread.
                is_post = scope["method"] == "POST"
                await send_error(send, ErrorResponse.of(error, close=is_post))
                return
        if scope["method"] != "POST":
            await self.fallback(scope, receive, send)
            return
        if path in self.models.paths or self.models.offers(path):
            await self._infer(path, scope, receive, send)
            return
        missing = self.models.missing(path)
        if missing is None:
            await self.fallback(scope, receive, send)
        else:
            await send_error(send, ErrorResponse.of(missing))

    async def _infer(
        self, path: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])

        async def answer(call: InferCall, body: Body) -> Response | None:
            if not wants_events(headers):
                return await self._answer(path, call, headers, body, receive)
            await self._answer_events(path, call, headers, body, receive, send)
            return None

        await self.run_call(path, headers, receive, send, answer)

    async def run_call(
        self,
        path: str,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
        answer: Callable[[InferCall, Body], Awaitable[Response | None]],
    ) -> None:
        """Reads the body of a request to the model at the infer path `path`.

        Then `answer` gets the call and the body, no longer compressed. It returns the
        response, or None where it has sent it; it raises what is to be answered
        instead.
        """
        share = Share(self.transfers)
        try:
            await self._run_call(path, headers, receive, send, answer, share)
        finally:
            share.give_back()

    async def _run_call(
        self,
        path: str,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
        answer: Callable[[InferCall, Body], Awaitable[Response | None]],
        share: Share,
    ) -> None:
        arrived = time.monotonic_ns()
        body = await self._body_or_refusal(headers, receive, send, share)
        if body is None:
            return
        # Looked up again: the model may have been swapped while the body came.
        entry, waited = self.models.paths.get(path), 0.0
        encoding = headers.get(b"content-encoding")
        if entry is None:
            try:
                if encoding is not None:
                    body = await self._inflated(encoding, body, share)
                    encoding = None
                entry, waited = await self.load_on_demand(path, headers, body)
            except (RequestError, EngineError) as error:
                await send_error(send, ErrorResponse.of(error))
                return
        call = InferCall(entry)
        call.arrived = arrived
        if waited:
            call.waited(waited)
        try:
            if encoding is not None:
                body = await self._inflated(encoding, body, share)
            response = await answer(call, body)
        except asyncio.CancelledError:
            call.forget()
            raise
        except ClientGone:
            call.forget()
            return
        except Exception as error:
            call.fail(error)
            await send_error(send, ErrorResponse.of(error))
            return
        if response is not None:
            await send_response(send, response)
        call.sent()

    async def _body_or_refusal(
        self,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
        share: Share,
    ) -> Body | None:
        """The chunks of the body; None where that was refused, or never came."""
        try:
            return await self._read_body(headers, receive, share)
        except BodyRefused as refused:
            await _refuse_body(receive, send, refused.why, is_read=refused.is_read)
        except TransferMemoryFull as full:
            share.give_back()
            await _refuse_body(receive, send, full, is_read=False)
        except InvalidRequest as error:
            await send_error(send, ErrorResponse.of(error, close=True))
        except ClientGone:
            pass
        return None

    async def _inflated(self, encoding: bytes, body: Body, share: Share) -> Body:
        limit = self.limits.max_body_bytes
        # As many at a time as there are threads: what comes out is counted after.
        inflated = await self._inflating.run(partial(inflate, encoding, body, limit))
        share.take(sum(map(len, inflated)))
        return inflated

    async def decode_elsewhere(
        self,
        path: str,
        call: InferCall,
        headers: Mapping[bytes, bytes],
        body: Body,
    ) -> InferRequest:
        """The request of a body that takes long, decoded in a thread.

        Raises what decoding raises.
        """
        return await self.in_thread(
            path, call, lambda codec: codec.decode_with(headers, body)
        )

    async def in_thread(
        self, path: str, call: InferCall, decode: Callable[[ModelCodec], T]
    ) -> T:
        """What `decode` makes with the codec of a call's model, which may be swapped
        meanwhile; then once more, with the new one. One thread does so for all.
        """
        while True:
            entry = call.entry
            if not entry.ready:
                raise ModelNotReady(entry.spec.name)
            found = await self._decoding.run(partial(decode, entry.codec(self.limits)))
            now = self.models.paths.get(path)
            if now is None or now.runner is entry.runner:
                return found
            call.move(now)

    async def load_on_demand(
        self, path: str, headers: Mapping[bytes, bytes], body: Body
    ) -> tuple[ModelEntry, float]:
        """What is at `path` once it is loaded, and the seconds that took.

        Raises `RequestError` or `EngineError` where there is nothing in time.
        """
        began = time.monotonic()
        if self.models.offers(path):
            get = headers.get
            stated = await asyncio.to_thread(
                read_preamble,
                get(b"content-type"),
                get(b"inference-header-content-length"),
                body,
                self.limits,
            )
            asked = stated.timeout
            if asked is None:
                asked = header_timeout(headers)
            patience = Patience(self.timeout, asked, stated.priority)
            entry = await self.models.fetch(path, patience)
            if entry is not None:
                return entry, time.monotonic() - began
        raise self.models.missing(path) or UnknownModel(path)

    async def _read_body(
        self, headers: dict[bytes, bytes], receive: Receive, share: Share
    ) -> Body:
        """The chunks of the body, refused before the first byte if it is too long.

        Raises BodyRefused, InvalidRequest, TransferMemoryFull or ClientGone.
        """
        limit = self.limits.max_body_bytes
        is_json = is_json_only(headers)
        length = headers.get(b"content-length")
        if length is not None:
            if not length.isdigit():
                msg = f"Content-Length is no number: {length[:40]!r}"
                raise InvalidRequest(msg)
            if len(length) > 18 or int(length) > limit:
                stated = length[:40].decode()
                raise BodyRefused(larger_than_allowed(stated, limit, is_json=is_json))
        chunks: Body = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(chunk)
            if size > limit:
                said = f"{size} or more" if more else size
                why = larger_than_allowed(said, limit, is_json=is_json)
                raise BodyRefused(why, is_read=not more)
            if chunk or not (more or chunks):
                share.take(len(chunk))
                chunks.append(chunk)
        return chunks

    async def _answer(
        self,
        path: str,
        call: InferCall,
        headers: dict[bytes, bytes],
        body: Body,
        receive: Receive,
    ) -> Response:
        """The response to a complete request; raises what is to be answered instead."""
        waiting = Waiting(receive)
        if call.entry.codec(self.limits).takes_long(headers, body):
            request = await self.decode_elsewhere(path, call, headers, body)
            submitted = call.queue(request, headers, self.timeout, waiting.wake)
        else:
            submitted = call.start(
                headers, body, self.limits, self.timeout, waiting.wake
            )
        if not submitted.done:
            waiting.deadline = call.deadline
            await self._waiting.wait(waiting, submitted, exact=call.is_exact)
        if waiting.is_client_gone and isinstance(submitted.error, Cancelled):
            raise ClientGone
        if self.transfers.is_full and call.is_answer_above(SMALL, submitted):
            raise self.transfers.refusal()
        response = call.finish(self.limits, submitted)
        coding = self.coding_for(headers)
        if coding is None:
            return response
        if response.nbytes <= _COMPRESS_AT_ONCE:
            return compress(response, coding)
        return await asyncio.to_thread(compress, response, coding)

    async def _answer_events(
        self,
        path: str,
        call: InferCall,
        headers: dict[bytes, bytes],
        body: Body,
        receive: Receive,
        send: Send,
    ) -> None:
        """Sends every response to a request as an event of its own."""
        in_json = {**headers, b"accept": b"application/json"}
        if call.entry.codec(self.limits).takes_long(headers, body):
            request = await self.decode_elsewhere(path, call, in_json, body)
        else:
            request = call.entry.codec(self.limits).decode_with(in_json, body)
        codec = call.entry.codec(self.limits)
        if request.binary or request.binary_by_name or request.places is not None:
            msg = (
                "the responses of an event stream are JSON: they hold no binary data, "
                "and nothing of them is in shared memory"
            )
            raise InvalidRequest(msg)
        call.accept(request, headers, self.timeout)
        async with ResponseStream(
            call, request, receive, in_iterations=True
        ) as responses:
            await send_events(
                responses, lambda outputs: codec.encode(request, outputs).body, send
            )

    def __repr__(self) -> str:
        return f"<InferFront {self.models!r} waiting={len(self._waiting)}>"


async def _refuse_body(
    receive: Receive, send: Send, why: RequestError, *, is_read: bool
) -> None:
    """Answers at once, then reads on for a moment before the connection is closed."""
    error = ErrorResponse.of(why, close=True)
    await send(
        {
            "type": "http.response.start",
            "status": error.status,
            "headers": error.headers,
        }
    )
    await send({"type": "http.response.body", "body": error.body, "more_body": True})
    more, dropped = not is_read, 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            while more and dropped < _LINGER_BYTES:
                message = await receive()
                more = message.get("more_body", False)
                dropped += len(message.get("body", b""))
    await send({"type": "http.response.body", "body": b""})
