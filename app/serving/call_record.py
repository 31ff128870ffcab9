"""Samples of answered requests, and their traces."""

from __future__ import annotations

from time import monotonic_ns
from typing import NamedTuple

from app.codec.messages import InferRequest
from app.observe.journal import Answered, Journal, Stamps
from app.observe.tracing import Tracer
from app.serving.runner import Submitted

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
