"""Exemplars: for each bucket of a histogram, the last request that fell into it.

A scrape finds them among the requests in the journal, so the request path does no work
for them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

from app.observe.exposition import escape_label
from app.observe.journal import Answered, Journal
from app.observe.metrics import ModelMetrics, bucket_of

#: The most characters of one exemplar's labels together (OpenMetrics).
MOST = 128
_Key = tuple[str, str, str]  # a model, its version, a histogram
_NONE: Mapping[int, str] = {}


class JournalExemplars:
    """The exemplars of all models, as they are at this moment."""

    def __init__(self, journal: Journal) -> None:
        self._found: dict[_Key, dict[int, str]] = defaultdict(dict)
        self._journal = journal
        self._clock = time.time_ns() - time.monotonic_ns()
        for request in journal.answered():
            self._add(request)
        for request in journal.slowest():
            self._add(request)

    def _add(self, request: Answered) -> None:
        model, labels = request.model, ""
        for name, ns in (
            ("popgate_request_duration_seconds", request.total_ns),
            ("popgate_queue_duration_seconds", request.queue_ns),
            ("popgate_compute_duration_seconds", request.compute_ns),
        ):
            key = (model.name, model.version, name)
            buckets, number = self._found[key], bucket_of(ns)
            if number in buckets:  # a later request is kept
                continue
            labels = labels or self._labels(request)
            ended = (request.ended + self._clock) / 1e9
            buckets[number] = f" # {{{labels}}} {ns / 1e9:.9f} {ended:.3f}"

    def _labels(self, request: Answered) -> str:
        trace = self._journal.trace_of(request.request_id)
        request_id = request.request_id.decode()
        known = {"trace_id": trace, "request_id": request_id}
        left, labels = MOST, []
        for name, value in known.items():
            if value and len(name) + len(value) <= left:
                left -= len(name) + len(value)
                labels.append(f'{name}="{escape_label(value)}"')
        return ",".join(labels)

    def __call__(self, model: ModelMetrics, name: str) -> Mapping[int, str]:
        """Return the exemplars of one histogram as text, by bucket number."""
        return self._found.get((model.name, model.version, name), _NONE)

    def __repr__(self) -> str:
        return f"<JournalExemplars of {len(self._found)} histograms>"
