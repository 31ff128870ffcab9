"""Records of a request that has ended: its journal entry and its trace."""

from __future__ import annotations

from time import monotonic_ns
from typing import NamedTuple

from app.codec.messages import InferRequest
from app.errors import row_of
from app.observe.journal import Answered, Asked, Failed, Journal, Stamps
from app.observe.metrics import ModelMetrics
from app.observe.tracing import Tracer
from app.serving.runner import Submitted

_NS = 1_000_000_000
#: The most characters of a request's id in its trace.
_MOST_ID = 1000


class Sampled(NamedTuple):
    """An answered request that may be traced or logged, until its answer is sent."""

    request: InferRequest
    submitted: Submitted
    stamps: Stamps


def takes_sample(journal: Journal, has_trace: bool) -> bool:
    """Return whether the journal may want an answered request; count it if not.

    `has_trace` says that the client or a call on its behalf named a trace.
    """
    access, spans = journal.access, journal.spans
    if not access.left:
        return True
    if spans is None:
        access.left -= 1
        return False
    if spans.sampler.left and not has_trace:
        access.left -= 1
        spans.sampler.left -= 1
        return False
    return True


def trace(tracer: Tracer, sampled: Sampled) -> None:
    """Write an answered request to a trace, as its answer is sent."""
    request, submitted, stamps = sampled
    answered, sent = Answered._make(stamps), monotonic_ns()
    shown = (request.id or answered.request_id.decode())[:_MOST_ID]
    tracer.record(shown, answered, sent, request.inputs, submitted.outputs)


def failed_of(
    asked: Asked,
    stats: ModelMetrics | None,
    status: int,
    error: BaseException,
    times: tuple[int, int, int],
    submitted: Submitted | None,
    rows: int,
) -> Failed:
    """Return the record of a failed request. `times` are those of its arrival, its
    beginning and its decoding, as far as it came.
    """
    arrived, began, decoded = times
    ended = monotonic_ns()
    since = arrived or began
    queue_ns = compute_ns = batch_rows = 0
    device = ""
    if submitted is not None:
        queue_ns, compute_ns = submitted.queue_ns, submitted.compute_ns
        batch_rows, device = submitted.batch_rows, submitted.device_id
        if not queue_ns and not compute_ns:  # it was still waiting
            queue_ns = ended - decoded
    return Failed(
        asked,
        stats,
        status,
        row_of(error).code,
        str(error),
        ended,
        (ended - since) / _NS if since else 0.0,
        arrived,
        began,
        decoded,
        queue_ns,
        compute_ns,
        rows,
        batch_rows,
        device,
    )
