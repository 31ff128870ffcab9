"""One inference request, from its complete body to its answer, however it came in.

A request is received, decoded, admitted, queued and run, and then answered. Otherwise
it is refused, fails, is cancelled by its client, or is late.

`CallState` has the facts of a request, and counts and logs its outcome. `Call` owns its
whole life: look-up, loading on demand, decoding, the deadline, disconnects, failures
and the answer. Both are in one file, because each request uses both. Subclasses bring
requests in. They can write a response (`respond`) and report that a client has
disconnected (`disconnect`): exchange.py in app/http/connection, and
app/http/asgi_call.py for ASGI.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from time import monotonic_ns

from app.codec.memory_check import TakesLong
from app.codec.messages import Body, InferRequest, Refusal, Response
from app.codec.model import DECODED_AT_ONCE
from app.errors import InvalidRequest, Row, row_of
from app.observe.journal import Answered, Asked, Failed, NestedCall, Wire
from app.observe.request_ids import HEADER, SpanIds, new_ids, taken_id, trace_context
from app.serving.call_record import Sampled, takes_sample, trace
from app.serving.calls.parent_request import ClientRequest, stated_by
from app.serving.forms import Form, encoder_of, refusal_of
from app.serving.keys import Key
from app.serving.pending import NotOneResponse, Pending
from app.serving.runner import Submitted
from app.serving.service import Decoding, Service
from app.serving.table import ModelEntry
from app.serving.timeout_policy import header_timeout
from app.serving.transfer_memory import SMALL
from engine import Cancelled, DeadlineExceeded, EngineError, Tensor, weighted

_NS = 1_000_000_000
_GONE, _UNKNOWN = row_of(Cancelled()), row_of(Exception())
#: Larger outputs (bytes) are written by a form in a thread. One number may take 2 us.
_OF_FORM = 1 << 15
#: The most calls to other models that are kept for one request.
MOST_NESTED_CALLS = 200


class CallState(ABC):
    """The facts of one request, and the way to its client. Belongs to the event loop's
    thread.

    `deadline` is a `time.monotonic()` time. If `is_exact` is true, the client set it,
    so it is kept to the millisecond. `arrived` is when the head of the request arrived
    (`time.monotonic_ns()`), if it was measured. `key` is the key that admitted it, if
    the server uses keys. `url_path` is the path that the client requested, including
    the base path; logs and pages show it. `response_complete` and `disconnected` are
    uvicorn's names.
    """

    # The constructor sets everything. Looking up a default of the class takes ten times
    # as long as looking up an attribute of the instance, and most attributes are read.
    __slots__ = (
        "_entered",
        "_preparing",
        "arrived",
        "began",
        "body",
        "deadline",
        "decoded",
        "disconnected",
        "entry",
        "form",
        "headers",
        "is_exact",
        "is_large",
        "is_pending",
        "key",
        "nested",
        "path",
        "request",
        "request_id",
        "response_complete",
        "sampled",
        "service",
        "span",
        "submitted",
        "url_path",
    )

    def __init__(
        self,
        service: Service,
        path: str,
        headers: Mapping[bytes, bytes],
        form: Form | None = None,
        url_path: str = "",
    ) -> None:
        self.service = service
        self.path = path
        self.url_path = url_path
        self.headers = headers
        if HEADER in headers:
            self.request_id = taken_id(headers[HEADER])
        else:
            self.request_id = next(new_ids)
        self.form = form
        self.body: Body = []
        self.entry: ModelEntry | None = None
        self.key: Key | None = None
        self.submitted: Submitted | None = None  # while it is in flight
        self.deadline = 0.0
        self.arrived = self.began = self.decoded = 0
        self.is_exact = self.disconnected = self.response_complete = False
        self.is_large = False  # its decoding might take long
        self.is_pending = False  # counted as begun, but not yet as ended
        self.request: InferRequest | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._entered: Key | None = None  # the key that counts it as in flight
        self.span: SpanIds | None = None  # made when it is needed
        self.nested: list[NestedCall] | None = None  # calls on its behalf
        #: Data of an answered request that may be traced or logged, kept until the
        #: answer is sent.
        self.sampled: Sampled | None = None

    @abstractmethod
    def respond(self, response: Response | None) -> None:
        """Write the answer; None if the client has disconnected or no answer can be
        made.
        """

    def watch(self) -> None:  # noqa: B027 - most need not
        """Watch whether the client of a long request stays connected."""

    def client(self) -> str:
        """Return the client's address; empty if it is unknown."""
        return ""

    def wire(self) -> tuple[str, str]:
        """Return the scheme of its URL, and its HTTP version."""
        return "http", "1.1"

    def count_body(self, size: int) -> None:  # noqa: B027
        """Count more bytes of the body. Raises `TransferMemoryFull`."""

    # -- its model and its request

    def find(self, entry: ModelEntry, began: int) -> None:
        """Begin the request to a model; `began` is a `time.monotonic_ns()`."""
        self.began = began
        entry.stats.pending += 1
        self.entry = entry
        self.is_pending = True

    def follow(self, entry: ModelEntry) -> None:
        """Go on with the present version of a model that was swapped."""
        entry.stats.pending += 1
        if self.entry is not None:
            self.entry.stats.pending -= 1
        self.entry = entry

    def owner(self) -> str | None:
        """Return the name of its key: empty without a key, None if the server has no
        keys.
        """
        if self.key is not None:
            return self.key.config.name
        return "" if self.service.models.has_keys else None

    def rows(self) -> int:
        """Return the number of rows of the request; 0 if it is not decoded."""
        return 0 if self.request is None else self.request.rows

    # -- its client

    def asked(self) -> Asked:
        """Return the client and the description of its request."""
        trace = self.headers.get(b"traceparent", b"")
        key = "" if self.key is None else self.key.config.name
        client, span = self.client(), self.span
        wire = None
        if self.service.journal.spans is not None:
            wire = Wire.of(*self.wire(), self.headers)
        path = self.url_path
        return Asked(self.request_id, "POST", path, client, trace, key, span, wire)

    def client_request(self) -> ClientRequest:
        """Return the client for calls made on its behalf (parent_request.py)."""
        given, spans = self.headers.get(b"traceparent", b""), self.service.journal.spans
        if spans is not None:
            if self.span is None:
                self.span = spans.begin(given)
            known = self.span.traceparent
        else:
            known = given.decode() if trace_context(given) is not None else ""
        return self.request_id.decode(), known, stated_by(self.request, self.owner())

    def add_nested_call(self, call: NestedCall) -> None:
        """Record that a call on its behalf has ended."""
        if self.nested is None:
            self.nested = []
        if len(self.nested) < MOST_NESTED_CALLS:
            self.nested.append(call)

    def nested_calls(self, submitted: Submitted | None) -> Sequence[NestedCall]:
        """Return the calls on its behalf, in order."""
        calls: Sequence[NestedCall] = getattr(submitted, "nested_calls", ())
        if self.nested:
            calls = sorted([*calls, *self.nested], key=lambda call: call.began)
        return calls

    # -- its outcome

    def count_answered(
        self,
        entry: ModelEntry,
        request: InferRequest,
        submitted: Submitted,
        encoding: int,
    ) -> None:
        """Count an answered request; `encoding` is when encoding began."""
        ended = monotonic_ns()
        if request.held is not None:
            request.held.release()
        self.is_pending = False
        journal, began = self.service.journal, self.began
        stamps = (
            self.request_id,
            entry.stats,
            self.arrived,
            began,
            self.decoded,
            submitted.queue_ns,
            submitted.compute_ns,
            encoding,
            ended,
            request.rows,
            submitted.batch_rows,
            submitted.device_id,
            self.url_path,
        )
        journal.last.append(stamps)
        if ended - began > journal.slow_ns:
            journal.keep_slow(stamps)
        runs = 0.0
        if (
            entry.scheduler is not None
            and isinstance(submitted, Pending)
            and submitted.tokens is not None
        ):
            entry.stats.count_tokens(submitted.tokens)
            runs = submitted.tokens.runs
        entry.stats.success(
            ended - began,
            submitted.queue_ns,
            submitted.compute_ns,
            rows=request.rows,
            batch_rows=submitted.batch_rows,
            input_ns=self.decoded - began,
            output_ns=ended - encoding,
            runs=runs,
        )
        if (journal.samples or entry.tracer is not None) and (
            entry.tracer is not None
            or takes_sample(
                journal, self.span is not None or b"traceparent" in self.headers
            )
        ):
            self.sampled = Sampled(request, submitted, stamps)

    def record_failed(
        self,
        error: BaseException,
        status: int,
        submitted: Submitted | None = None,
        rows: int = 0,
    ) -> None:
        """Keep and log why the request failed, and which phases it reached."""
        ended, since = monotonic_ns(), self.arrived or self.began
        queue_ns = compute_ns = batch_rows = 0
        device = ""
        if submitted is not None:
            queue_ns, compute_ns = submitted.queue_ns, submitted.compute_ns
            batch_rows, device = submitted.batch_rows, submitted.device_id
            if not queue_ns and not compute_ns:  # it was still waiting
                queue_ns = ended - self.decoded
        failed = Failed(
            self.asked(),
            None if self.entry is None else self.entry.stats,
            status,
            row_of(error).code,
            str(error),
            ended,
            (ended - since) / _NS if since else 0.0,
            self.arrived,
            self.began,
            self.decoded,
            queue_ns,
            compute_ns,
            rows,
            batch_rows,
            device,
        )
        self.service.journal.fail(failed, self.nested_calls(submitted))

    def sent(self) -> None:
        """Trace and log an answer that was handed to the connection, if it is sampled.

        A second call does nothing.
        """
        sampled, self.sampled = self.sampled, None
        entry = self.entry
        if sampled is None or entry is None:
            return
        if entry.tracer is not None and entry.tracer.wants():
            trace(entry.tracer, sampled)
        if self.service.journal.samples:
            answered = Answered._make(sampled.stamps)
            calls = self.nested_calls(sampled.submitted)
            self.service.journal.log_answered(self.asked(), answered, calls)


class Call(CallState):
    """One request to the model at an infer path: its life."""

    __slots__ = ()

    # -- from the body to the queue

    def begin(self) -> None:
        """Decode the complete body and queue the request."""
        key = self.key
        if key is not None:
            if key.is_free:  # `Key.enter`, inlined
                key.in_flight += 1
                self._entered = key
            elif not self._enter(key):
                return
        # The lookup is done now, because the model may have been swapped while the body
        # arrived.
        entry = self.service.models.paths.get(self.path)
        if entry is not None:
            self.began = monotonic_ns()
            entry.stats.pending += 1
            self.entry = entry
            self.is_pending = True
        is_coded = b"content-encoding" in self.headers
        if entry is None or is_coded or (self.is_large and _is_slow(self, entry)):
            self._preparing = asyncio.create_task(self._prepare())
            return
        body, self.body = self.body, []
        try:
            if self.form is not None:
                request = self.form.decode(entry.codec, body)
            else:
                get = self.headers.get
                request = entry.codec.decode(
                    get(b"content-type"),
                    get(b"inference-header-content-length"),
                    get(b"accept"),
                    body,
                )
            self._queue(entry, request)
        except TakesLong:
            self.body, self._preparing = body, asyncio.create_task(self._prepare())
        except Exception as error:
            self.fail(error)

    def _enter(self, key: Key) -> bool:
        """Return whether its key lets the request begin now; answer it if not."""
        try:
            key.enter()
        except Exception as error:
            self.fail(error)
            return False
        self._entered = key
        return True

    async def _prepare(self) -> None:
        """Begin after a wait: a thread handles the body, or a model loads."""
        service, headers = self.service, self.headers
        body, self.body = self.body, []
        try:
            began = self.began or monotonic_ns()
            latest = began / _NS + service.latest(self.entry, headers)
            encoding = headers.get(b"content-encoding")
            if encoding is not None:
                body = await service.inflate(encoding, body, latest)
                self.count_body(sum(map(len, body)))
            entry = self.entry
            if entry is None:
                entry, waited = await service.fetch(self.path, headers, body)
                self.find(entry, monotonic_ns() - round(waited * _NS))
                latest = self.began / _NS + service.latest(entry, headers)
            decoding = Decoding(service, self.path, headers, self.form, self.follow)
            request = await decoding.run(entry, body, latest)
            more = sum([one.nbytes for one in request.inputs.values()])
            more -= sum(map(len, body)) + request.region_bytes
            if more > 0:
                self.count_body(more)
            self._preparing = None
            if self.response_complete:
                return
            assert self.entry is not None
            self._queue(self.entry, request)
        except Exception as error:
            self.fail(error)

    def _queue(self, entry: ModelEntry, request: InferRequest) -> None:
        """Determine the deadline of the request, and submit it to its model."""
        self.request = request
        regions = entry.regions
        if regions is not None and (request.extents or request.read_from):
            read, owner = request.read_from, self.owner()
            request.held = regions.hold(request.extents, read, owner)
            self.count_body(request.region_bytes)
        timeout, most = self.service.timeout, entry.max_timeout
        wanted = request.timeout
        if wanted is None and b"x-request-timeout" in self.headers:
            wanted = header_timeout(self.headers)
        if wanted is None:
            wanted = entry.timeout or timeout
            levels = entry.level_timeouts
            if levels:
                wanted = levels.get(request.priority, levels[0]) or wanted
        else:
            self.is_exact = True
            # A request cannot ask for more than the longest default timeout, unless the
            # model allows more.
            most = most or max(timeout, entry.longest_timeout)
        if most and wanted > most:
            wanted = most
        self.deadline = self.began / _NS + wanted
        key = self._entered
        if key is not None and key.weight:
            request.priority = weighted(request.priority, key.weight, key.lane)
        self.decoded = monotonic_ns()
        submitted = self._submit(entry, request)
        if not submitted.done:
            self.submitted = submitted
            self.service.deadlines.add(self)

    def _submit(self, entry: ModelEntry, request: InferRequest) -> Submitted:
        """Submit the request. Raise the error for the answer if that fails."""
        if entry.scheduler is not None:
            request.belong_to(self.owner(), self.count_body)
            return entry.scheduler.submit(request, self.deadline, self.done)
        return entry.runner.submit(
            request.inputs,
            deadline=self.deadline,
            on_done=self.done,
            priority=request.priority,
        )

    # -- giving it up

    def expire(self) -> None:
        """Fail the request because its deadline has passed
        (`app/serving/deadlines.py`).
        """
        self.abandon(DeadlineExceeded())

    def disconnect(self, why: str = "the client has disconnected") -> None:
        """Cancel the request of a disconnected client, and discard its data."""
        self.disconnected = True
        self.body = []
        if self._preparing is not None:
            self._preparing.cancel()
            self._forget()
        self.abandon(Cancelled(why))
        self._forget()  # frees the memory of a body that was still arriving

    def abandon(self, error: EngineError) -> None:
        submitted = self.submitted
        if submitted is not None and not submitted.done:
            submitted.abandon(error)

    # -- end

    def done(self, submitted: Submitted) -> None:
        """Answer the request, which has ended in any way."""
        if self.response_complete:
            return
        if self.disconnected:
            self._forget()
            return
        try:
            response = self._encode(submitted)
        except Exception as error:
            self.fail(error)
            return
        if response is not None:
            self._end()
            self.respond(response)

    def _encode(self, submitted: Submitted) -> Response | None:
        """Return the response to a finished request and count it; None if a thread
        makes the response.

        Raises the request's error.
        """
        entry, request, form = self.entry, self.request, self.form
        assert entry is not None
        assert request is not None
        error = submitted.error
        if error is not None:
            if form is not None and isinstance(error, NotOneResponse):
                raise InvalidRequest(form.not_one)
            # A raised error keeps the frames that it passed through, and with them
            # requests.
            raise error.again() if isinstance(error, EngineError) else error
        outputs = submitted.outputs
        size = 0
        for tensor in outputs.values():
            size += tensor.nbytes
        if size > SMALL or form is not None or request.classes is not None:
            transfers = self.service.transfers
            if size > SMALL and transfers.held > transfers.limit:
                transfers.check()
            if self.takes_long(entry, request, size):
                later = self._encode_in_thread(entry, request, submitted)
                self._preparing = asyncio.create_task(later)
                return None
        encoding = monotonic_ns()
        if form is None:
            response = entry.codec.encode(request, outputs)
        else:
            response = form.encode(entry.codec, request, outputs)
        self.count_answered(entry, request, submitted, encoding)
        return response

    def takes_long(self, entry: ModelEntry, request: InferRequest, size: int) -> bool:
        """Return whether encoding `size` bytes takes too long for the event loop."""
        if self.form is not None:  # it may repeat the request
            return size > _OF_FORM or self.is_large
        return entry.codec.takes_long_to_encode(request, size)

    async def _encode_in_thread(
        self, entry: ModelEntry, request: InferRequest, submitted: Submitted
    ) -> None:
        """Answer with a response that takes long to encode."""
        try:
            encoding = monotonic_ns()
            response = await self.encoded(entry, request, submitted.outputs)
            self._preparing = None
            if self.response_complete:
                return
            self.count_answered(entry, request, submitted, encoding)
        except Exception as error:
            if not self.response_complete:
                self.fail(error)
            return
        self._end()
        self.respond(response)

    def fail(self, error: Exception) -> None:
        """Answer with an error, and count the error."""
        if self.response_complete:
            raise error
        try:
            submitted, rows = self.submitted, self.rows()
            self._end(row_of(error))
        finally:
            response = self._respond_with(error)
        self.record_failed(error, response.status, submitted, rows)

    async def encoded(
        self, entry: ModelEntry, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        """Return the response of large outputs, encoded in a thread.

        Raises `RequestError`, and DeadlineExceeded when the request's time is over.
        """
        encode = encoder_of(entry.codec, self.form, request, outputs)
        size = sum([tensor.nbytes for tensor in outputs.values()])
        return await self.service.encode(encode, size, self.deadline)

    def _respond_with(self, error: Exception) -> Refusal:
        try:
            response = refusal_of(error, self.request_id, self.form)
        except BaseException:  # for example if memory is missing
            self.respond(None)
            raise
        self.respond(response)
        return response

    def _forget(self) -> None:
        """Release the client, which has disconnected."""
        if self.response_complete:
            return
        submitted, rows = self.submitted, self.rows()
        self._end(_GONE)
        self.respond(None)
        gone = Cancelled("the client has disconnected")
        self.record_failed(gone, row_of(gone).status, submitted, rows)

    def _end(self, failure: Row = _UNKNOWN) -> None:
        """Release everything, and count a request that was not counted yet
        as failed.
        """
        self.response_complete = True
        key, self._entered = self._entered, None
        if key is not None:
            if key.is_free:
                key.in_flight -= 1
            else:
                key.leave()
        entry, request = self.entry, self.request
        # Requests in flight refer to this object, and their outputs are large.
        self.request = self.submitted = self._preparing = None
        self.service.deadlines.calls.pop(self, None)
        if not self.is_pending or entry is None:
            return
        self.is_pending = False
        try:
            if request is not None and request.held is not None:
                request.held.release()
        finally:
            entry.stats.failure(failure, monotonic_ns() - self.began)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path} {self.submitted!r}>"


def _is_slow(call: Call, entry: ModelEntry) -> bool:
    is_large = sum(map(len, call.body)) > DECODED_AT_ONCE
    return is_large or entry.codec.takes_long(call.headers, call.body, call.form)
