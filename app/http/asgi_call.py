"""Calls that arrive as ASGI messages; the front (app/http/front.py) awaits them.

`EventCall` has several responses, which `send_events` writes as server-sent events.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic_ns
from typing import Any

from app.codec.json_lists import is_long
from app.codec.media import quality_of
from app.codec.messages import InferRequest, Response
from app.codec.model import DECODED_AT_ONCE
from app.errors import ErrorResponse, InvalidRequest, row_of
from app.http.asgi import ClientGone, Receive, Send, send_response
from app.observe.journal import Asked
from app.serving.call import Call
from app.serving.forms import Form, encoder_of
from app.serving.naming_form import NamingForm
from app.serving.pending import IteratingRunner, ResponseScheduler
from app.serving.runner import Submitted
from app.serving.service import Service
from app.serving.table import ModelEntry
from app.serving.transfer_memory import Share
from engine import Tensor

EVENT_STREAM = b"text/event-stream"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


class AsgiCall(Call):
    """A call whose task waits for it."""

    #: The address of its client.
    peer: str = ""
    scheme: str = "http"
    http_version: str = "1.1"
    _answer: Response | None = None
    _woken: asyncio.Future[None] | None = None
    _watcher: asyncio.Task[None] | None = None

    def __init__(
        self,
        service: Service,
        path: str,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        form: Form | None = None,
    ) -> None:
        super().__init__(service, path, headers, form)
        self.share = Share(service.transfers)
        self._receive = receive

    async def answer(self) -> Response | None:
        """Return the response; None if the client has disconnected.

        The body is complete.

        If the waiting task is cancelled, so is the request.
        """
        self.begin()
        try:
            while not self.response_complete:
                await self._change()
        finally:
            self.leave()
        return self._answer

    def respond(self, response: Response | None) -> None:
        self._answer = response
        self._wake()

    def client(self) -> str:
        return self.peer

    def wire(self) -> tuple[str, str]:
        return self.scheme, self.http_version

    def count_body(self, size: int) -> None:
        self.share.add(size)

    def watch(self) -> None:
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.disconnect()

    def never_begin(self) -> None:
        """Count the complete request as cancelled: its client left before `begin`."""
        entry = self.service.models.paths.get(self.path)
        if entry is not None:
            self.find(entry, monotonic_ns())
        self.disconnect()

    def leave(self) -> None:
        """Cancel the request because its task ends."""
        if self._watcher is not None:
            self._watcher.cancel()
        if not self.response_complete:
            self.disconnect("the waiting task was cancelled")
        self._forget()

    async def _change(self) -> None:
        self._woken = asyncio.get_running_loop().create_future()
        await self._woken

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


class NamingCall(AsgiCall):
    """A call to the model that its body names.

    `check` is called with the path of that model, and raises an error to refuse the
    call.
    """

    def __init__(
        self,
        service: Service,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        form: NamingForm,
        check: Callable[[str], object],
    ) -> None:
        super().__init__(service, "", headers, receive, form)
        self.naming = form
        self._check = check
        self._locating: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if b"content-encoding" in self.headers or is_long(self.body, DECODED_AT_ONCE):
            self._locating = asyncio.create_task(self._locate())
            return
        try:
            self._find(self.naming.target(self.body, self.service.models))
        except Exception as error:
            self.fail(error)
            return
        super().begin()

    async def _locate(self) -> None:
        """Find the model of a body that takes time to read, then begin."""
        service, headers = self.service, self.headers
        try:
            latest = time.monotonic() + service.latest(None, headers)
            encoding = headers.get(b"content-encoding")
            if encoding is not None:
                self.body = await service.inflate(encoding, self.body, latest)
                self.count_body(sum(map(len, self.body)))
                self.headers = plain = {**headers}
                del plain[b"content-encoding"]
            find = partial(self.naming.target, self.body, service.models)
            path = await service.read(find, latest, sum(map(len, self.body)))
            if self.response_complete:
                return
            self._find(path)
        except Exception as error:
            if not self.response_complete:
                self.fail(error)
            return
        super().begin()

    def _find(self, path: str) -> None:
        self._check(path)
        self.path = path

    def leave(self) -> None:
        if self._locating is not None:
            self._locating.cancel()
        super().leave()


class RouteCall(AsgiCall):
    """A call to a route that a model defines. No scheduler changes its request."""

    method: str = "GET"

    def asked(self) -> Asked:
        return super().asked()._replace(method=self.method)

    def _submit(self, entry: ModelEntry, request: InferRequest) -> Submitted:
        return entry.runner.submit(
            request.inputs,
            deadline=self.deadline,
            on_done=self.done,
            priority=request.priority,
        )


class EventCall(AsgiCall):
    """A call with any number of responses, each sent when it is ready.

    Each device iteration of a model is one response. The call requests the next
    response after the connection has accepted the one before. So a slow reader delays
    its own request only.
    """

    def __init__(
        self,
        service: Service,
        path: str,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        form: Form | None = None,
    ) -> None:
        in_json = {**headers, b"accept": b"application/json"}
        super().__init__(service, path, in_json, receive, form)
        self._ready: deque[Mapping[str, Tensor]] = deque()
        self._run: Submitted | None = None  # the run has ended

    @property
    def refusal(self) -> Response | None:
        """Return the answer that replaces the events if the request was
        never queued.
        """
        return self._answer

    async def next_event(self) -> bytes:
        """Return the text of the next response; empty after the last.

        Raises the error of the request, and `ClientGone`.
        """
        while not (self._ready or self._run is not None or self.response_complete):
            await self._change()
        if self.disconnected:
            raise ClientGone
        if self._ready:
            entry, request = self.entry, self.request
            assert entry is not None
            assert request is not None
            outputs = self._ready.popleft()
            size = sum([tensor.nbytes for tensor in outputs.values()])
            if self.takes_long(entry, request, size):
                return (await self.encoded(entry, request, outputs)).body
            return encoder_of(entry.codec, self.form, request, outputs)().body
        if self._run is not None and self._run.error is not None:
            raise self._run.error
        return b""

    def proceed(self) -> None:
        """Record that the connection has accepted the last event."""
        proceed: Any = getattr(self.submitted or self._run, "proceed", None)
        if proceed is not None:
            proceed()

    def succeed(self) -> None:
        """Record that all events are sent, unless the client left at the last one."""
        if self.response_complete:
            return
        entry, request, run = self.entry, self.request, self._run
        assert entry is not None
        assert request is not None
        assert run is not None
        self.count_answered(entry, request, run, monotonic_ns())
        self._end()

    def end_with(self, error: Exception) -> None:
        """Record that the last event has reported the failure to the client."""
        if self.response_complete:
            return
        row, rows = row_of(error), self.rows()
        self._end(row)
        self.record_failed(error, row.status, self._run, rows)

    def disconnect(self, why: str = "the client has disconnected") -> None:
        super().disconnect(why)
        self._wake()

    def _submit(self, entry: ModelEntry, request: InferRequest) -> Submitted:
        is_binary = request.binary or request.binary_by_name
        if self.form is None and (is_binary or request.extents is not None):
            msg = (
                "an event stream is JSON and can hold neither binary data nor outputs "
                "in shared memory"
            )
            raise InvalidRequest(msg)
        request.belong_to(self.owner(), self.count_body)
        scheduler = entry.scheduler
        if isinstance(scheduler, ResponseScheduler):
            return scheduler.stream(request, self.deadline, self._put, self._ended)
        if scheduler is not None:
            return scheduler.submit(request, self.deadline, self._end_with_one)
        return entry.runner.submit(
            request.inputs,
            deadline=self.deadline,
            on_done=self._end_with_iterations,
            priority=request.priority,
        )

    def _put(self, outputs: Mapping[str, Tensor]) -> None:
        self._ready.append(outputs)
        self._wake()

    def _end_with_one(self, run: Submitted) -> None:
        if run.error is None:
            self._ready.append(run.outputs)
        self._ended(run)

    def _end_with_iterations(self, run: Submitted) -> None:
        runner = self.entry.runner if self.entry is not None else None
        if run.error is None and isinstance(runner, IteratingRunner):
            self._ready.extend(runner.iterations_of(run.outputs))
            self._ended(run)
        else:
            self._end_with_one(run)

    def _ended(self, run: Submitted) -> None:
        self._run = run
        self._wake()


def wants_events(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether Accept prefers server-sent events; among equals the
    first counts.
    """
    accept = headers.get(b"accept")
    if accept is None or EVENT_STREAM not in accept:
        return False
    best = max(accept.split(b","), key=quality_of)
    return best.strip().startswith(EVENT_STREAM) and quality_of(best) > 0


async def send_events(call: EventCall, send: Send) -> None:
    """Begin a call with a complete body, and send its responses as events.

    If the reader disconnects, its request ends. If a request fails, its last event
    holds the error. If that is also the first event, it sets the status.
    """
    started = False
    call.begin()
    if not call.response_complete:
        call.watch()
    try:
        while event := await call.next_event():
            if not started:
                await _begin(send, 200)
                started = True
            text = b"data: %b\n\n" % event
            await send({"type": "http.response.body", "body": text, "more_body": True})
            call.proceed()
        if call.refusal is not None:
            await send_response(send, call.refusal)
            return
        if not started:
            await _begin(send, 200)
        await send({"type": "http.response.body", "body": b""})
        call.succeed()
    except ClientGone:
        pass
    except Exception as error:
        answer = ErrorResponse.of(error)
        if not started:
            extra = [h for h in answer.headers if h[0] == b"retry-after"]
            await _begin(send, answer.status, extra)
        text = b"data: %b\n\n" % answer.body
        await send({"type": "http.response.body", "body": text})
        call.end_with(error)
    finally:
        call.leave()


async def _begin(
    send: Send, status: int, extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [*_HEADERS, *(extra or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
