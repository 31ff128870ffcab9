"""Spans of OpenTelemetry, made of what was measured anyway, after the answer.

They need ``popgate[otel]`` and are set up by OpenTelemetry's own variables: they are on
where ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or its form for traces) says where they go. A
request that is not in the sample costs one comparison; those that are go to a thread,
where everything of OpenTelemetry happens.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from app import propagators
from app.observe.journal import Answered, Asked, Failed, Part
from app.observe.log_text import shortened
from app.observe.request_ids import SpanIds, trace_context
from engine import InvalidConfig

logger = logging.getLogger(__name__)

#: Requests that wait to be made spans of; those beyond are dropped.
MOST_WAITING = 2048
#: Batches whose members may still come: spans of one name each other.
_BATCHES = 64
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NS = 1_000_000_000
_NEEDS_MORE = (
    "OpenTelemetry's variables ask for spans, which need more packages: "
    "pip install 'popgate[otel]'"
)

#: A phase of a request: its name, its begin and its end.
_Phase = tuple[str, int, int]
_Job = tuple[Asked, Answered | Failed, Sequence[Part], int]


def spans_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's variables ask for spans."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    names = exporters(environment)
    if names == ["otlp"]:
        return any(environment.get(name) for name in _ENDPOINTS)
    return names != ["none"]


def exporters(environment: Mapping[str, str]) -> list[str]:
    """Return the names in ``OTEL_TRACES_EXPORTER``, ``otlp`` by default."""
    text = environment.get("OTEL_TRACES_EXPORTER", "").lower()
    return [name.strip() for name in text.split(",") if name.strip()] or ["otlp"]


class Sampler:
    """Which requests get spans, as ``OTEL_TRACES_SAMPLER`` and ``…_ARG`` say.

    OpenTelemetry's own names; its default is ``parentbased_always_on``: what the client
    has decided, else all. A share is every so-manieth request.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises `engine.InvalidConfig` for a name or a share that it has not."""
        name = environment.get("OTEL_TRACES_SAMPLER", "") or "parentbased_always_on"
        share = environment.get("OTEL_TRACES_SAMPLER_ARG", "") or "1"
        self._asks_parent = name.startswith("parentbased_")
        kind = name.removeprefix("parentbased_")
        try:
            self._share = {"always_on": 1.0, "always_off": 0.0}.get(kind, float(share))
        except ValueError:
            self._share = -1.0
        kinds = ("always_on", "always_off", "traceidratio")
        if kind not in kinds or not 0 <= self._share <= 1:
            msg = f"OTEL_TRACES_SAMPLER={name!r}, OTEL_TRACES_SAMPLER_ARG={share!r}"
            expected = f"[parentbased_]{'|'.join(kinds)} and a share from 0 to 1"
            raise InvalidConfig(f"{msg}: expected {expected}")
        self._due = 0.0

    def wants(self, traceparent: bytes) -> bool:
        """Whether a request with this header is in the sample. Counts it."""
        if self._asks_parent and traceparent:
            context = trace_context(traceparent)
            if context is not None:
                return bool(context[2] & 1)
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True


class Spans:
    """Makes spans of requests and has them exported."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Raises `engine.InvalidConfig` where the extra is not installed, or the
        variables cannot be understood."""
        environment = os.environ if environment is None else environment
        self._sampler = Sampler(environment)
        self._maker = _Maker(environment)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.dropped = 0
        self._thread: threading.Thread | None = None

    def begin(self, traceparent: bytes) -> SpanIds:
        """The ids of the span of a request that brought this header, before it ends:
        what is asked on its behalf takes them along. Counts it."""
        wanted = self._sampler.wants(traceparent)
        return SpanIds.below(traceparent, is_sampled=wanted)

    def record(
        self, asked: Asked, request: Answered | Failed, parts: Sequence[Part] = ()
    ) -> None:
        """Make spans of a request that has been sent, if it is in the sample, and of
        its parts."""
        if asked.span is not None:
            wanted = asked.span.is_sampled
        else:
            wanted = self._sampler.wants(asked.traceparent)
        if not wanted:
            return
        if self._jobs.qsize() >= MOST_WAITING:
            self.dropped += 1
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="popgate-spans", daemon=True
            )
            self._thread.start()
        self._jobs.put((asked, request, tuple(parts), time.monotonic_ns()))

    def close(self) -> None:
        """Export what there is. Blocks, for a few seconds at most."""
        if self._thread is None:
            self._maker.close()
            return
        self._jobs.put(None)
        self._thread.join(5.0)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._maker.make(*job)
        self._maker.close()


class _Maker:
    """All that OpenTelemetry is needed for, by one thread."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError as e:
            raise InvalidConfig(_NEEDS_MORE) from e
        self._api: Any = trace
        named = "OTEL_SERVICE_NAME" in environment or "service.name=" in (
            environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        )
        resource = Resource.create({} if named else {"service.name": "popgate"})
        self._ids = _Ids(RandomIdGenerator())
        # Who is in the sample has been decided already.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=resource,
            id_generator=self._ids,
        )
        for exporter in _exporters(environment):
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer: Any = self._provider.get_tracer("popgate")
        #: The spans of the last batches, by what is the same for all their members.
        self._batches: dict[tuple[Any, ...], list[Any]] = {}

    def make(
        self,
        asked: Asked,
        request: Answered | Failed,
        parts: Sequence[Part],
        sent: int,
    ) -> None:
        clock = time.time_ns() - time.monotonic_ns()
        status = 200 if isinstance(request, Answered) else request.status
        attributes: dict[str, Any] = {
            "http.request.method": asked.method,
            "url.path": shortened(asked.path),
            "http.response.status_code": status,
            "client.address": asked.client,
            "popgate.request_id": asked.request_id.decode(),
        }
        model = request.model
        if model is not None:
            attributes["popgate.model.name"] = model.name
            attributes["popgate.model.version"] = model.version
        if isinstance(request, Answered):
            began = request.arrived or request.began
        else:
            began = request.ended - round(request.seconds * _NS)
        self._ids.given = asked.span
        root = self._tracer.start_span(
            f"infer {model.name}" if model is not None else asked.method,
            context=self._parent(asked.traceparent),
            kind=self._api.SpanKind.SERVER,
            attributes=attributes,
            start_time=began + clock,
        )
        self._children(root, request, _phases_of(request), clock)
        if isinstance(request, Failed):
            code = self._api.StatusCode
            # The client's own mistakes are no errors of a server's span.
            root.set_attribute("error.type", request.code)
            if status >= 500:
                root.set_status(self._api.Status(code.ERROR, shortened(request.why)))
            sent = request.ended
        for part in parts:
            self._part(root, part, clock)
        root.end(end_time=max(sent, request.ended) + clock)

    def _parent(self, traceparent: bytes) -> Any:
        context = trace_context(traceparent)
        if context is None:
            return self._api.set_span_in_context(self._api.INVALID_SPAN)
        trace_id, span_id, flags = context
        remote = self._api.SpanContext(
            int(trace_id, 16), int(span_id, 16), True, self._api.TraceFlags(flags)
        )
        return self._api.set_span_in_context(self._api.NonRecordingSpan(remote))

    def _part(self, parent: Any, part: Part, clock: int) -> None:
        """What another model did for it."""
        context = self._api.set_span_in_context(parent)
        attributes = {
            "popgate.model.name": part.model.name,
            "popgate.model.version": part.model.version,
        }
        span = self._tracer.start_span(
            part.label,
            context=context,
            attributes=attributes,
            start_time=part.began + clock,
        )
        if part.code:
            span.set_attribute("error.type", part.code)
            span.set_status(self._api.Status(self._api.StatusCode.ERROR))
        for each in part.parts:
            self._part(span, each, clock)
        if not part.parts and part.device:
            phases = _run_phases(part, part.began, part.ended)
            self._children(span, part, phases, clock)
        span.end(end_time=part.ended + clock)

    def _children(
        self,
        parent: Any,
        request: Answered | Failed | Part,
        phases: Sequence[tuple[str, int, int]],
        clock: int,
    ) -> None:
        context = self._api.set_span_in_context(parent)
        for name, begin, end in phases:
            of_batch = name == "batch"
            span = self._tracer.start_span(
                name,
                context=context,
                start_time=begin + clock,
                links=self._mates(request) if of_batch else (),
            )
            if name == "queue" and request.device:
                span.set_attribute("popgate.device", request.device)
            if of_batch:
                span.set_attribute("popgate.device", request.device)
                span.set_attribute("popgate.rows", request.rows)
                span.set_attribute("popgate.batch_rows", request.batch_rows)
                self._batches[_run_of(request)].append(span.get_span_context())
                # Then comes the way of the result back to the gateway.
                self._tracer.start_span(
                    "compute",
                    context=self._api.set_span_in_context(span),
                    start_time=begin + clock,
                ).end(end_time=min(begin + request.compute_ns, end) + clock)
            span.end(end_time=end + clock)

    def _mates(self, request: Answered | Failed | Part) -> list[Any]:
        """Links to the members of the batch that have been made spans of already."""
        mates = self._batches.setdefault(_run_of(request), [])
        while len(self._batches) > _BATCHES:
            del self._batches[next(iter(self._batches))]
        return [self._api.Link(context) for context in mates]

    def close(self) -> None:
        self._provider.shutdown()


def _exporters(environment: Mapping[str, str]) -> list[Any]:
    """Return the exporters that ``OTEL_TRACES_EXPORTER`` names.

    Raises `engine.InvalidConfig` for one that there is not.
    """
    makers = {"otlp": _otlp_exporter, "console": _console_exporter}
    names = exporters(environment)
    for name in names:
        if name not in makers:
            expected = "expected otlp, console or none"
            raise InvalidConfig(f"OTEL_TRACES_EXPORTER={name!r}: {expected}")
    return [makers[name](environment) for name in names]


def _console_exporter(environment: Mapping[str, str]) -> Any:
    """Return an exporter that writes each span as one line of JSON to stdout."""
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    return ConsoleSpanExporter(formatter=lambda span: span.to_json(indent=None) + "\n")


def _otlp_exporter(environment: Mapping[str, str]) -> Any:
    """Return an exporter that speaks the protocol of ``OTEL_EXPORTER_OTLP_PROTOCOL``.

    Raises `engine.InvalidConfig` if its package is not installed: spans in another
    protocol would go to a port that does not understand them.
    """
    variable = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
    if not environment.get(variable):
        variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = environment.get(variable, "").strip().lower() or "http/protobuf"
    if protocol not in ("http/protobuf", "grpc"):
        expected = "expected http/protobuf or grpc"
        raise InvalidConfig(f"{variable}={protocol!r}: {expected}")
    kind = protocol.partition("/")[0]
    try:
        module = import_module(
            f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter"
        )
    except ImportError as e:
        if kind == "http":
            raise InvalidConfig(_NEEDS_MORE) from e
        msg = (
            f"{variable}=grpc needs one more package: pip install "
            "opentelemetry-exporter-otlp-proto-grpc (or set it to http/protobuf, and "
            "the endpoint to the collector's port for OTLP over HTTP, usually 4318)"
        )
        raise InvalidConfig(msg) from e
    return module.OTLPSpanExporter()


class _Ids:
    """OpenTelemetry's ids, but for one span that has been given some already."""

    def __init__(self, others: Any) -> None:
        self._others = others
        #: Those of the next span.
        self.given: SpanIds | None = None

    def generate_trace_id(self) -> int:
        given = self.given
        return int(self._others.generate_trace_id() if given is None else given[0])

    def generate_span_id(self) -> int:
        given, self.given = self.given, None
        return int(self._others.generate_span_id() if given is None else given[1])

    def is_trace_id_random(self) -> bool:
        return True


def _phases_of(request: Answered | Failed) -> list[_Phase]:
    """Return the phases that a request came to."""
    arrived, began, decoded = request.arrived, request.began, request.decoded
    if isinstance(request, Answered):
        end = request.encoding
        last = [("encode", end, request.ended)]
    elif not began:
        return []
    else:
        end, last = request.ended, []
    phases = [("receive", arrived or began, began), ("decode", began, decoded or end)]
    if request.device or not isinstance(request, Failed):
        phases += _run_phases(request, decoded, end)
    return phases + last


def _run_phases(
    request: Answered | Failed | Part, begin: int, end: int
) -> list[_Phase]:
    """Return the phases between the queue and the result. A request that failed may
    not have come to a batch."""
    started = min(begin + request.queue_ns, end)
    if not request.compute_ns and (isinstance(request, Failed) or _has_failed(request)):
        return [("queue", begin, started)]
    return [("queue", begin, started), ("batch", started, end)]


def _has_failed(request: Answered | Part) -> bool:
    return isinstance(request, Part) and bool(request.code)


def _run_of(request: Answered | Failed | Part) -> tuple[object, ...]:
    """The same for all members of a batch: it was measured once for all of them."""
    return (request.model, request.device, request.compute_ns, request.batch_rows)


def spans_of_environment() -> Spans | None:
    """Return what makes the spans that the environment asks for; the log says why if
    there is nothing.

    The variables are often set for all programs of a machine, so that none of them
    must keep the server from starting.
    """
    if propagators.missing:
        names = ", ".join(propagators.missing)
        logger.warning(
            "%s: %s is not installed, and is ignored; the header traceparent (W3C) is "
            "read in any case",
            propagators.VARIABLE,
            names,
        )
    if not spans_wanted(os.environ):
        return None
    try:
        return Spans()
    except InvalidConfig as e:
        logger.warning("no spans are made: %s", e)
    except Exception as e:  # OpenTelemetry has its own ways to refuse a variable
        logger.warning("no spans are made: OpenTelemetry says: %s", e)
    return None
