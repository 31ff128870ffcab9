"""Several responses to one request, sent as they come: server-sent events.

`ResponseStream` runs a request and is iterated over its responses; `send_events` writes
them as ``text/event-stream``. The next response is asked for when the one before it has
been given to the connection, so a slow reader slows its own request down and nobody
else's; a reader that has gone ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol, Self, runtime_checkable

from app.codec.messages import InferRequest
from app.errors import ErrorResponse, ModelNotReady
from app.http.asgi import ClientGone, Receive, Send
from app.serving.infer_call import InferCall
from app.serving.table import OnResponse, Submitted
from engine import Cancelled, DeadlineExceeded, Tensor

EVENT_STREAM = b"text/event-stream"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


class Streamed(Submitted, Protocol):
    """A request under way that may have several responses."""

    def proceed(self) -> None: ...


@runtime_checkable
class ResponseScheduler(Protocol):
    """A scheduler that gives the responses of a request one by one."""

    def stream(
        self,
        request: InferRequest,
        deadline: float,
        on_response: OnResponse,
        on_done: Callable[[Any], None],
    ) -> Streamed: ...


@runtime_checkable
class IteratingRunner(Protocol):
    """A runner that tells the results of device iterations apart."""

    def iterations_of(
        self, outputs: Mapping[str, Tensor]
    ) -> list[Mapping[str, Tensor]]: ...


def wants_events(headers: Mapping[bytes, bytes]) -> bool:
    """Whether server-sent events are what Accept likes best; of equals, the first."""
    accept = headers.get(b"accept")
    if accept is None or EVENT_STREAM not in accept:
        return False
    return max(accept.split(b","), key=_quality).strip().startswith(EVENT_STREAM)


def _quality(item: bytes) -> float:
    for parameter in item.split(b";")[1:]:
        name, _, value = parameter.partition(b"=")
        if name.strip().lower() == b"q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


class ResponseStream:
    """The responses to one request: an asynchronous context manager and iterator.

    With `in_iterations` each device iteration of a model is a response. Iterating
    raises how the request failed, and `ClientGone`. Whatever way it is left, nothing of
    the request runs on.
    """

    def __init__(
        self,
        call: InferCall,
        request: InferRequest,
        receive: Receive,
        *,
        in_iterations: bool = False,
    ) -> None:
        self.call = call
        self._in_iterations = in_iterations
        self._request = request
        self._receive = receive
        self._ready: deque[Mapping[str, Tensor]] = deque()
        self._changed: asyncio.Future[None] | None = None
        self._run: Submitted | None = None
        self._ended = False
        self._is_client_gone = False
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        """Queues the request; raises what is to be answered instead."""
        loop = asyncio.get_running_loop()
        self._run = self._start()
        if not self._ended:
            left = max(0.0, self.call.deadline - time.monotonic())
            self._timer = loop.call_later(left, self._expire)
            self._watcher = loop.create_task(self._watch())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        self._give_up(Cancelled("nobody takes the responses"))

    def __aiter__(self) -> AsyncIterator[Mapping[str, Tensor]]:
        return self._responses()

    async def _responses(self) -> AsyncIterator[Mapping[str, Tensor]]:
        proceed = getattr(self._run, "proceed", None)
        while True:
            while not (self._ready or self._ended):
                self._changed = asyncio.get_running_loop().create_future()
                await self._changed
            if self._is_client_gone:
                raise ClientGone
            if not self._ready:
                break
            yield self._ready.popleft()
            if proceed is not None:
                proceed()
        run = self._run
        if run is not None and run.error is not None:
            raise run.error

    def succeed(self) -> None:
        """Counts the request as answered."""
        assert self._run is not None
        self.call.succeed(self._run, time.monotonic_ns())

    def _start(self) -> Submitted:
        entry, request = self.call.entry, self._request
        if not entry.ready:
            raise ModelNotReady(entry.spec.name)
        deadline = self.call.deadline
        scheduler = entry.scheduler
        if isinstance(scheduler, ResponseScheduler):
            return scheduler.stream(request, deadline, self._put, self._end)
        if scheduler is not None:
            return scheduler.submit(request, deadline, self._end_with_one)
        return entry.runner.submit(
            request.inputs,
            deadline=deadline,
            on_done=self._end_with_iterations,
            priority=request.priority,
        )

    def _put(self, outputs: Mapping[str, Tensor]) -> None:
        self._ready.append(outputs)
        self._wake()

    def _end_with_one(self, run: Submitted) -> None:
        if run.error is None:
            self._ready.append(run.outputs)
        self._end(run)

    def _end_with_iterations(self, run: Submitted) -> None:
        runner = self.call.entry.runner
        is_cut = self._in_iterations and run.error is None
        if is_cut and isinstance(runner, IteratingRunner):
            self._ready.extend(runner.iterations_of(run.outputs))
            self._end(run)
        else:
            self._end_with_one(run)

    def _end(self, run: Submitted) -> None:
        self._run = run
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _expire(self) -> None:
        self._give_up(DeadlineExceeded())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_client_gone = True
        self._give_up(Cancelled("the client has disconnected"))
        self._wake()

    def _give_up(self, error: Cancelled | DeadlineExceeded) -> None:
        if self._run is not None and not self._run.done:
            self._run.abandon(error)

    def __repr__(self) -> str:
        return f"<ResponseStream {self._run!r}, {len(self._ready)} ready>"


async def send_events(
    responses: ResponseStream,
    encode: Callable[[Mapping[str, Tensor]], bytes],
    send: Send,
) -> None:
    """Sends every response as an event with the text that `encode` makes of it.

    A request that fails has an event with the error as its last; if that is the first
    one, too, it decides the status. Raises `ClientGone`.
    """
    started = False
    try:
        async for outputs in responses:
            event = b"data: %b\n\n" % encode(outputs)
            if not started:
                await _begin(send, 200)
                started = True
            await send({"type": "http.response.body", "body": event, "more_body": True})
    except ClientGone:
        raise
    except Exception as error:
        answer = ErrorResponse.of(error)
        if not started:
            extra = [h for h in answer.headers if h[0] == b"retry-after"]
            await _begin(send, answer.status, extra)
        await send(
            {"type": "http.response.body", "body": b"data: %b\n\n" % answer.body}
        )
        responses.call.fail(error)
        return
    if not started:
        await _begin(send, 200)
    await send({"type": "http.response.body", "body": b""})
    responses.succeed()


async def _begin(
    send: Send, status: int, extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [*_HEADERS, *(extra or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
