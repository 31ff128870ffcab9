"""Spans of OpenTelemetry, made after the answer from existing measurements.

They need ``popgate[otel]`` and are configured by OpenTelemetry's own variables. They
are on if ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or its form for traces) names a destination.
A request outside the sample costs one comparison. Requests in the sample go to a
thread, which does all work of OpenTelemetry.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from app import propagators
from app.observe.journal import Answered, Asked, Failed, NestedCall
from app.observe.request_ids import SpanIds
from engine import InvalidConfig
from popgate_telemetry.exporters import spans_wanted
from popgate_telemetry.sampler import Sampler
from popgate_telemetry.span_maker import SpanMaker

logger = logging.getLogger(__name__)

#: The most requests that wait for their spans. Further ones are dropped.
MOST_WAITING = 2048
#: If this many requests wait, their spans are made immediately, because they fill a
#: batch.
_MANY = 64
_Job = tuple[Asked, Answered | Failed, Sequence[NestedCall], int]


class Spans:
    """Makes spans of requests and exports them.

    The spans of a request are exported together or dropped together. Requests wait in a
    queue of `OTEL_BSP_MAX_QUEUE_SIZE` and are dropped if it is full.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Raise `engine.InvalidConfig` if the extra is missing, or a variable has a
        wrong value.
        """
        environment = os.environ if environment is None else environment
        self.sampler = Sampler(environment)
        self._most = _number(environment, "OTEL_BSP_MAX_QUEUE_SIZE", MOST_WAITING)
        self._batch = _number(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)
        self._delay = _number(environment, "OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000
        self._maker = SpanMaker(environment)
        self._jobs: deque[_Job] = deque()
        self._news = threading.Event()
        self._many = threading.Event()
        self._closed = False
        self._full = self._lost = 0  # one thread counts each
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Return how many requests lost their spans: the queue was full, or the export
        failed.
        """
        return self._full + self._lost

    def begin(self, traceparent: bytes) -> SpanIds:
        """Return the ids for the span of a request with this header, before the request
        ends.

        Calls on behalf of the request carry the ids. The request counts for the sample.
        """
        wanted = self.sampler.wants(traceparent)
        return SpanIds.below(traceparent, is_sampled=wanted)

    def record(
        self, asked: Asked, request: Answered | Failed, calls: Sequence[NestedCall] = ()
    ) -> Asked:
        """Make spans of an answered request and its nested calls, if it is in the
        sample.

        Returns `asked` with the ids of its span.
        """
        span = asked.span
        if span is None and self.sampler.wants(asked.traceparent):
            span = SpanIds.below(asked.traceparent, is_sampled=True)
            asked = asked._replace(span=span)
        if span is None or not span.is_sampled:
            return asked
        count = len(self._jobs)
        if count >= self._most:
            self._full += 1
            return asked
        if self._thread is None:
            thread = threading.Thread(
                target=self._run, name="popgate-spans", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no room for a thread; the next request tries again
                self._full += 1
                return asked
            self._thread = thread
        self._jobs.append((asked, request, tuple(calls), time.monotonic_ns()))
        # This wakes the thread twice a batch, not for each request.
        if not count:
            self._news.set()
        elif count == _MANY:
            self._many.set()
        return asked

    def close(self) -> None:
        """Export the waiting spans. Blocks for a few seconds at most."""
        self._closed = True
        self._news.set()
        self._many.set()
        if self._thread is not None:
            self._thread.join(5.0)
        self._maker.close()

    def _run(self) -> None:
        self._maker.enter_thread()
        while self._jobs or not self._closed:
            self._news.wait()
            self._news.clear()
            if not self._closed:
                self._many.wait(self._delay)
            self._many.clear()
            while self._jobs:
                self._export()

    def _export(self) -> None:
        """Export one batch of whole requests."""
        spans: list[Any] = []
        count = 0
        try:
            while self._jobs and len(spans) < self._batch:
                count += 1
                spans += self._maker.make(*self._jobs.popleft())
                time.sleep(0)  # let the event loop run
            if not self._maker.export(spans):
                self._lost += count
        except Exception:
            self._lost += count
            logger.exception("the spans of %d requests were dropped", count)


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number above 0. Raises `engine.InvalidConfig`."""
    text = environment.get(name, "").strip() or str(default)
    if not text.isdecimal() or not int(text):
        raise InvalidConfig(f"{name}={text!r}: expected a whole number above 0")
    return int(text)


def spans_of_environment() -> Spans | None:
    """Return the maker of the spans that the environment requests; None if there is
    none.

    The log gives the reason. The variables are often set for all programs of a machine,
    so a wrong one must not keep the server from starting.
    """
    if propagators.missing:
        names = ", ".join(propagators.missing)
        logger.warning(
            "%s: %s is not installed and is ignored; the header traceparent (W3C) is "
            "still read",
            propagators.VARIABLE,
            names,
        )
    if not spans_wanted(os.environ):
        return None
    try:
        return Spans()
    except InvalidConfig as e:
        logger.warning("cannot create spans: %s", e)
    except Exception as e:  # OpenTelemetry raises errors of many types
        logger.warning("spans are off: OpenTelemetry: %s", e)
    return None
