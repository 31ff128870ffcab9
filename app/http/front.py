"""The infer path: one raw ASGI callable that stands in front of everything else.

It takes POST on the paths of the model table, and on those of other forms of inference,
and hands all other requests on. The front reads the body in chunks, which are never
joined here. A `Call` (app/serving/call.py) does the rest, and then the front sends the
answer. The path has no thread hop and only one await that waits: for the call's answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from app.codec.compression import compress
from app.codec.media import is_json_only, media_type_of
from app.codec.messages import Body, Response
from app.codec.model import ALL_AT_ONCE
from app.errors import (
    ErrorResponse,
    HttpError,
    InvalidRequest,
    RequestError,
    TransferMemoryFull,
    UnsupportedMediaType,
    larger_than_allowed,
)
from app.http.answer_watch import ANSWERED_BY, AnswerWatch
from app.http.application import Application, FrontOptions, Operation
from app.http.asgi import (
    CONNECTION,
    HOLDER,
    NAMES,
    RELAYED,
    WHOLE,
    ASGIApp,
    ClientGone,
    Message,
    Receive,
    Scope,
    Send,
    send_error,
    send_head,
    send_response,
)
from app.http.asgi_call import (
    AsgiCall,
    EventCall,
    NamingCall,
    RouteCall,
    send_events,
    wants_events,
)
from app.http.floods import READ
from app.http.origins import AnyMethod, for_origins, with_free_methods
from app.http.request_log import KEY, RequestLog
from app.serving.forms import ErrorForm, TypedForm
from app.serving.route_form import RouteForm
from app.serving.route_table import FoundRoutes
from app.serving.service import Service
from app.serving.table import infer_path, infer_path_of
from app.serving.transfer_memory import Share

# Limits in seconds and bytes for reading and dropping the rest of a refused body. If
# the connection closes while the client is still sending, the client never sees the
# answer.
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 64 << 20
# Responses up to this size are compressed immediately (under a millisecond). Larger
# ones are compressed in a thread. Compressed request bodies are always inflated in a
# thread, because they may become large.
_COMPRESS_AT_ONCE = 64 * 1024


class ThrottledConnection(Protocol):
    """A connection (connection/ending.py) whose client slows down after refusals."""

    def slow_down(self, refusals: float = 1.0) -> None: ...
    def drop_rest(self, refusals: float) -> None: ...


class BodyRefused(Exception):
    """The body is too long, or of a type that its form does not read.

    `size` bytes have arrived. `is_read` is true if that is the whole body.
    """

    def __init__(
        self, why: RequestError, *, size: int = 0, is_read: bool = False
    ) -> None:
        super().__init__(why)
        self.why = why
        self.size = size
        self.is_read = is_read


class InferFront(Application):
    """Serves inference, and passes all other requests to `fallback`.

    `access` checks all requests, including those for `fallback`.
    """

    def __init__(
        self, fallback: ASGIApp, service: Service, options: FrontOptions | None = None
    ) -> None:
        super().__init__(service, options or FrontOptions())
        self.fallback = fallback
        self.naming = {operation.path: operation for operation in self.options.naming}
        self._any_method = AnyMethod(self._serve, self.options.methods_of)
        #: Answers requests of web pages, which browsers send with an Origin.
        self._for_pages: ASGIApp | None = None
        if self.options.origins:
            self._for_pages = for_origins(self._any_method, self.options.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.fallback(scope, receive, send)
            return
        # Another process counts a relayed answer when it writes the answer.
        watch = None
        if RELAYED not in scope:
            names = scope.get(NAMES, ())
            watch = AnswerWatch(scope, self.service.answers, self.access, names)
        log = RequestLog(scope, send, self.service.journal, watch, self.proxies)
        try:
            await self.answer(log.scope, receive, log.send)
        finally:
            log.finish()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request over HTTP, whose id is in its scope."""
        if self._for_pages is not None:
            await self._for_pages(scope, receive, send)
        else:
            await self._any_method(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]
        is_post = scope["method"] == "POST"
        headers: dict[bytes, bytes] = dict(scope["headers"])
        client = scope.get("client")
        peer = None if client is None else client[0]
        models = self.service.models
        operation, target = self._operation(path)
        routes = None if models.routes.is_empty else models.routes.find(path)
        if routes is not None:
            target = infer_path(routes.model)
        if target != path and (is_post or routes is not None):
            send = _counted_as_inference(send)
        try:
            if len(headers) < len(scope["headers"]):
                self.access.check_once(scope["headers"])
            names = scope.get(NAMES, ())
            about = target if is_post or routes is not None else path
            key = self.access.check(about, scope["method"], headers, peer, names)
        except HttpError as error:
            _slow_down(scope)
            scope[KEY].key = self.access.name_of(headers, scope.get(NAMES, ()))
            # A body remains unread.
            refusal = ErrorResponse.of(error, close=is_post)
            asked = self.naming.get(path) or operation if is_post else None
            form = None if asked is None else asked.form()
            await send_error(send, _in_form(refusal, form))
            return
        if key is not None:
            scope[KEY].key = key.config.name
            scope[HOLDER] = key
        try:
            if routes is not None:
                call: AsgiCall | None = self._route_call(routes, path, scope, receive)
            elif is_post:
                call = self._call_to(path, operation, target, scope, receive)
            else:
                call = None
        except RequestError as error:
            refusal = ErrorResponse.of(error, close=routes is not None)
            await send_error(send, refusal)
            return
        if call is None:
            await self.fallback(scope, receive, send)
            return
        call.key = key
        await self._run(call, scope, receive, send)

    def _route_call(
        self, routes: FoundRoutes, path: str, scope: Scope, receive: Receive
    ) -> AsgiCall:
        """Return the call to a model's own route. Raises `HttpError` (405)."""
        method: str = scope["method"]
        if method not in routes.methods:
            allowed = with_free_methods(set(routes.methods))
            msg = f"Method Not Allowed: {path} does not take {method}; "
            msg += f"it takes {allowed}"
            lines = ((b"allow", allowed.encode()),)
            raise HttpError(405, msg, "method_not_allowed", lines)
        client, has_keys = scope[KEY].client, self.service.models.has_keys
        form = RouteForm(scope, path, client, has_keys=has_keys)
        headers, target = dict(scope["headers"]), infer_path(routes.model)
        call = RouteCall(self.service, target, headers, receive, form)
        call.method = method
        return call

    def _call_to(
        self,
        path: str,
        operation: Operation | None,
        target: str,
        scope: Scope,
        receive: Receive,
    ) -> AsgiCall | None:
        """Return the inference that a POST to `path` requests; None if it requests
        none. Raises the error of a missing model.
        """
        service, models = self.service, self.service.models
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if path in models.paths or models.offers(path) or models.is_to_come(path):
            kind = EventCall if wants_events(headers) else AsgiCall
            return kind(service, path, headers, receive)
        missing = models.missing(path)
        if missing is not None:
            raise missing
        naming = self.naming.get(path)
        if naming is not None:
            names = scope.get(NAMES, ())
            check = partial(self.access.check_inference, headers=headers, names=names)
            return NamingCall(service, headers, receive, naming.form(), check)
        if operation is None:
            return None
        kind = EventCall if operation.in_events else AsgiCall
        return kind(service, target, headers, receive, operation.form())

    def _operation(self, path: str) -> tuple[Operation | None, str]:
        """Return the operation at `path`, and the infer path of its model.

        The result is None and `path` if there is no operation.
        """
        for operation in self.options.operations:
            target = infer_path_of(path, operation.prefix, operation.suffix)
            if target:
                return operation, target
        return None, path

    async def _run(
        self, call: AsgiCall, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Read the body of a call, and send its answer."""
        log: RequestLog = scope[KEY]
        try:
            call.arrived = time.monotonic_ns()
            call.peer, call.url_path = log.client, log.path
            call.scheme = scope.get("scheme", "http")
            call.http_version = scope.get("http_version", "1.1")
            body = await self._body_or_refusal(call, scope, receive, send)
            if body is None:
                return
            log.is_done = True
            call.body = body
            call.is_large = call.share.size > ALL_AT_ONCE
            if isinstance(call, EventCall):
                await send_events(call, send)
            else:
                response = await call.answer()
                if response is None:
                    return
                if response.status == 413:  # the body was inflated up to the limit
                    _slow_down(scope, self.service.limits.max_body_bytes / READ)
                await send_response(send, await self._compressed(call, response))
            call.sent()
        finally:
            call.share.give_back()

    async def _compressed(self, call: AsgiCall, response: Response) -> Response:
        """Return the answer of an inference in the coding that its client prefers."""
        coding = self.coding_for(call.headers)
        if coding is None or call.form is not None or response.status != 200:
            return response
        if response.nbytes <= _COMPRESS_AT_ONCE:
            return compress(response, coding)
        return await self.service.compress(response, coding)

    async def _body_or_refusal(
        self, call: AsgiCall, scope: Scope, receive: Receive, send: Send
    ) -> Body | None:
        """Return the chunks of the body; None if it was refused or never arrived."""
        try:
            if isinstance(call.form, TypedForm):
                call.form.check_type(media_type_of(call.headers.get(b"content-type")))
            return await self._read_body(call.headers, receive, call.share)
        except BodyRefused as refused:
            await _refuse_body(scope, receive, send, refused, call.form)
        except (UnsupportedMediaType, TransferMemoryFull) as error:
            why = BodyRefused(error, size=call.share.size)
            call.share.give_back()
            await _refuse_body(scope, receive, send, why, call.form)
        except InvalidRequest as error:
            answer = ErrorResponse.of(error, close=True)
            await send_error(send, _in_form(answer, call.form))
        except ClientGone as gone:
            if gone.is_whole:
                log: RequestLog = scope[KEY]
                log.is_done = True
                call.never_begin()
        return None

    async def _read_body(
        self, headers: Mapping[bytes, bytes], receive: Receive, share: Share
    ) -> Body:
        """Return the chunks of the body. A body with a length that is too large is
        refused before its first byte.

        Raises BodyRefused, InvalidRequest, TransferMemoryFull or ClientGone.
        """
        limit = self.service.limits.max_body_bytes
        is_json = is_json_only(headers)
        length = headers.get(b"content-length")
        if length is not None:
            if not length.isdigit():
                msg = f"Content-Length must be a number, got {length[:40]!r}"
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
                raise ClientGone(is_whole=message.get(WHOLE, False))
            chunk: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(chunk)
            if size > limit:
                said = f"{size} or more" if more else size
                why = larger_than_allowed(said, limit, is_json=is_json)
                raise BodyRefused(why, size=size, is_read=not more)
            if chunk or not (more or chunks):
                share.add(len(chunk))
                chunks.append(chunk)
        return chunks

    def __repr__(self) -> str:
        return f"<InferFront {self.service!r}>"


def _counted_as_inference(send: Send) -> Send:
    """Return `send` for an inference whose path does not show that it is one."""

    async def send_counted(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, ANSWERED_BY: "infer"}
        await send(message)

    return send_counted


def _slow_down(scope: Scope, refusals: float = 1.0) -> None:
    connection: ThrottledConnection | None = scope.get(CONNECTION)
    if connection is not None:
        connection.slow_down(refusals)


def _in_form(answer: ErrorResponse, form: object) -> ErrorResponse:
    """Return an error as the form of its request writes errors."""
    return form.refuse(answer) if isinstance(form, ErrorForm) else answer


async def _refuse_body(
    scope: Scope, receive: Receive, send: Send, refused: BodyRefused, form: object
) -> None:
    """Answer immediately. Then continue to read for a moment before closing the
    connection.
    """
    error = _in_form(ErrorResponse.of(refused.why, close=True), form)
    await send_head(send, error)
    await send({"type": "http.response.body", "body": error.body, "more_body": True})
    connection: ThrottledConnection | None = scope.get(CONNECTION)
    if connection is not None:
        connection.drop_rest(refused.size / READ)
        return
    more, dropped = not refused.is_read, 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            while more and dropped < _LINGER_BYTES:
                message = await receive()
                more = message.get("more_body", False)
                dropped += len(message.get("body", b""))
    await send({"type": "http.response.body", "body": b""})
