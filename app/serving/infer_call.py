"""One inference, from a complete body to a response; whoever waits for it.

The front awaits it as an ASGI application does, the gateway's own HTTP protocol is
called back. Both go through `start` and `finish`, so that a request means the same on
either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any

from app.codec.messages import Body, InferRequest, Response
from app.errors import FailureReason, ModelNotReady, row_of
from app.limits import Limits
from app.observe.tracing import Timeline, Tracer
from app.serving.patience import header_timeout
from app.serving.table import ModelEntry, Submitted
from engine import EngineError

_NS = 1_000_000_000


class InferCall:
    """One request to one model. Belongs to the event loop's thread.

    `deadline` is a `time.monotonic()` time; `is_exact` says that the client asked for
    it, so that it should be kept to the millisecond. `arrived` is when the head of the
    request came (`time.monotonic_ns()`), where somebody has looked.
    """

    __slots__ = (
        "_began",
        "_decoded",
        "_is_counted",
        "_request",
        "_stamps",
        "arrived",
        "deadline",
        "entry",
        "is_exact",
        "submitted",
    )

    def __init__(self, entry: ModelEntry) -> None:
        self.entry = entry
        self._began = monotonic_ns()
        self._decoded = 0
        # Whether its end is: whatever follows that must not end it again.
        self._is_counted = False
        self._request: InferRequest | None = None
        # Of an answered request that may be traced, until it is sent.
        self._stamps: tuple[Submitted, int, int] | None = None
        self.arrived = 0
        self.submitted: Submitted | None = None
        self.deadline = 0.0
        self.is_exact = False
        entry.stats.begin()

    def waited(self, seconds: float) -> None:
        """Counts the time that its model took to be loaded for it."""
        self._began -= round(seconds * _NS)

    def start(
        self,
        headers: Mapping[bytes, bytes],
        body: Body,
        limits: Limits,
        timeout: float,
        on_done: Callable[[Any], None],
    ) -> Submitted:
        """Decodes, validates and queues; `timeout` holds where nobody says otherwise.

        `body` is not compressed any more, whatever the headers say.
        Raises what is to be answered instead: after that, `fail` is due.
        """
        entry = self.entry
        if not entry.ready:
            raise ModelNotReady(entry.spec.name)
        request = entry.codec(limits).decode_with(headers, body)
        return self.queue(request, headers, timeout, on_done)

    def move(self, entry: ModelEntry) -> None:
        """Goes to what has taken the place of its entry before it was queued."""
        entry.stats.begin()
        self.entry.stats.pending -= 1
        self.entry = entry

    def queue(
        self,
        request: InferRequest,
        headers: Mapping[bytes, bytes],
        timeout: float,
        on_done: Callable[[Any], None],
    ) -> Submitted:
        """Queues a request that is decoded; otherwise as `start`."""
        entry = self.entry
        self.accept(request, headers, timeout)
        if entry.scheduler is not None:
            self.submitted = entry.scheduler.submit(request, self.deadline, on_done)
        else:
            self.submitted = entry.runner.submit(
                request.inputs,
                deadline=self.deadline,
                on_done=on_done,
                priority=request.priority,
            )
        return self.submitted

    def accept(
        self, request: InferRequest, headers: Mapping[bytes, bytes], timeout: float
    ) -> None:
        """Takes a request that is decoded, and finds out how long it may take."""
        entry = self.entry
        self._request = request
        regions = entry.regions
        if regions is not None and (request.places or request.read_from):
            request.held = regions.hold(request.places, request.read_from)
        wanted = request.timeout
        if wanted is None and b"x-request-timeout" in headers:
            wanted = header_timeout(headers)
        if wanted is None:
            wanted = entry.timeout or timeout
            levels = entry.level_timeouts
            if levels:
                wanted = levels.get(request.priority, levels[0]) or wanted
        else:
            self.is_exact = True
        # Nobody gets more than there is without asking, but for an operator's word.
        longest = entry.max_timeout or max(timeout, entry.longest_timeout)
        self.deadline = self._began / _NS + min(wanted, longest)
        self._decoded = monotonic_ns()

    def is_answer_above(self, size: int, submitted: Submitted) -> bool:
        """Whether there are outputs, of more than so many bytes."""
        if submitted.error is not None:
            return False
        return sum(tensor.nbytes for tensor in submitted.outputs.values()) > size

    def finish(self, limits: Limits, submitted: Submitted) -> Response:
        """The response to a request that is done; raises how it failed."""
        error = submitted.error
        if error is not None:
            # What is raised keeps the frames it went through, and with them requests.
            raise error.again() if isinstance(error, EngineError) else error
        request = self._request
        assert request is not None
        encoding = monotonic_ns()
        response = self.entry.codec(limits).encode(request, submitted.outputs)
        self.succeed(submitted, encoding)
        return response

    def succeed(self, submitted: Submitted, encoding: int) -> None:
        """Counts a request that is answered; `encoding` is when that was begun."""
        entry, request = self.entry, self._request
        assert request is not None
        ended = monotonic_ns()
        if request.held is not None:
            request.held.release()
        self._is_counted = True
        entry.stats.success(
            ended - self._began,
            submitted.queue_ns,
            submitted.compute_ns,
            rows=request.rows,
            batch_rows=submitted.batch_rows,
            input_ns=self._decoded - self._began,
            output_ns=ended - encoding,
        )
        if entry.tracer is not None:
            self._stamps = (submitted, encoding, ended)

    def sent(self) -> None:
        """The answer has been handed to the connection: trace it, if it is in the
        sample. Does nothing the second time.
        """
        tracer, stamps = self.entry.tracer, self._stamps
        self._stamps = None
        if tracer is not None and stamps is not None and tracer.wants():
            self._trace(tracer, *stamps)

    def _trace(
        self, tracer: Tracer, submitted: Submitted, encoding: int, ended: int
    ) -> None:
        spec, request = self.entry.spec, self._request
        assert request is not None
        # Durations of the device, laid on the gateway's clock.
        started = min(self._decoded + submitted.queue_ns, encoding)
        timeline = Timeline(
            arrived=min(self.arrived or self._began, self._began),
            received=self._began,
            decoded=self._decoded,
            started=started,
            computed=min(started + submitted.compute_ns, encoding),
            encoded=ended,
            sent=monotonic_ns(),
        )
        model = (spec.name, spec.version)
        tracer.record(model, request.id, timeline, request.inputs, submitted.outputs)

    def fail(self, error: BaseException) -> None:
        """Counts a request that is answered with an error, if its end is not yet."""
        self._end(row_of(error).reason)

    def forget(self) -> None:
        """Counts a request whose client has gone."""
        self._end(FailureReason.CANCELED)

    def _end(self, reason: FailureReason) -> None:
        if self._is_counted:
            return
        self._is_counted = True
        try:
            if self._request is not None and self._request.held is not None:
                self._request.held.release()
        finally:
            self.entry.stats.failure(reason, monotonic_ns() - self._began)

    def __repr__(self) -> str:
        return f"<InferCall {self.entry.spec.name} {self.submitted!r}>"
