"""Spans of OpenTelemetry, made after the answer from existing measurements.

They need ``popgate[otel]`` and are configured by OpenTelemetry's own variables. They
are on if ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or its form for traces) names a destination.
A request outside the sample costs one comparison. Requests in the sample go to a
thread, which does all work of OpenTelemetry.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from importlib import import_module
from random import Random, SystemRandom
from typing import Any

from app import propagators
from app.about import VERSION
from app.observe.journal import Answered, Asked, Failed, NestedCall
from app.observe.log_text import shortened
from app.observe.request_ids import SpanIds, trace_context
from engine import InvalidConfig

logger = logging.getLogger(__name__)

#: The most requests that wait for their spans. Further ones are dropped.
MOST_WAITING = 2048
#: If this many requests wait, their spans are made immediately, because they fill a
#: batch.
_MANY = 64
#: The share of requests with spans if no variable sets it (docs/how-to/observe.md).
SHARE = "0.005"
_LEAST = 1e-12
_ROUTE = re.compile(
    r"(?P<prefix>.*/v[12]/models/)[^/:]+(?P<version>/versions/[^/]+)?(?P<verb>[/:]\w+)"
)
#: The number of batches that are remembered for further members. The spans of one batch
#: link to each other.
_BATCHES = 64
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NS = 1_000_000_000
_NEEDS_MORE = (
    "OpenTelemetry's variables enable spans, but its packages are not installed: pip "
    "install 'popgate[otel]'"
)

#: A phase of a request: its name, its begin and its end.
_Phase = tuple[str, int, int]
_Job = tuple[Asked, Answered | Failed, Sequence[NestedCall], int]


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
    """Choice of the requests that get spans, by ``OTEL_TRACES_SAMPLER`` and ``…_ARG``.

    The names are OpenTelemetry's. Without the variables, the client's ``traceparent``
    decides. Of the requests without one, the share `SHARE` is in the sample. A share
    means every n-th request: `left` requests are skipped before the next.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raise `engine.InvalidConfig` for an unknown name or an invalid share."""
        name = environment.get("OTEL_TRACES_SAMPLER", "") or "parentbased_traceidratio"
        is_default = not environment.get("OTEL_TRACES_SAMPLER", "")
        share = environment.get("OTEL_TRACES_SAMPLER_ARG", "")
        share = share or (SHARE if is_default else "1")
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
        self.left = self._count_to_next()

    def _count_to_next(self) -> int:
        """Return the number of requests to skip before the next in the sample."""
        share = max(self._share, _LEAST)
        count = max(1, math.ceil((1.0 - self._due) / share))
        self._due += count * share - 1.0
        return count - 1

    def wants(self, traceparent: bytes) -> bool:
        """Count a request with this header; return whether it is in the sample."""
        if self._asks_parent and traceparent:
            context = trace_context(traceparent)
            if context is not None:
                return bool(context[2] & 1)
        if self.left:
            self.left -= 1
            return False
        self.left = self._count_to_next()
        return self._share > 0


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
        self._maker = _Maker(environment)
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


class _Maker:
    """Does all work that needs OpenTelemetry, in one thread.

    Spans are complete when they are made, so they need no tracer. A tracer would take
    three times as long.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        try:
            from opentelemetry import context, trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import ReadableSpan
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as e:
            raise InvalidConfig(_NEEDS_MORE) from e
        self._api: Any = trace
        self._context: Any = context
        self._span: Any = ReadableSpan
        named = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        own = {}
        if "OTEL_SERVICE_NAME" not in environment and "service.name=" not in named:
            own["service.name"] = "popgate"
        if "service.version=" not in named:
            own["service.version"] = VERSION
        self._resource = Resource.create(own)
        self._scope = InstrumentationScope("popgate", VERSION)
        self._flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        self._unset = trace.Status(trace.StatusCode.UNSET)
        self._random = Random(SystemRandom().getrandbits(128))
        self._exporters = _exporters(environment)
        #: The spans of the last batches, by the values that all members of a batch
        #: share.
        self._batches: dict[tuple[Any, ...], list[Any]] = {}
        # The trace and the clock of the request whose spans are being made.
        self._trace = self._clock = 0
        self._state: Any = None
        self._made: list[Any] = []

    def enter_thread(self) -> None:
        """Keep other instrumentation from making spans of this thread's requests."""
        key = getattr(self._context, "_SUPPRESS_INSTRUMENTATION_KEY", "")
        if key:
            self._context.attach(self._context.set_value(key, True))

    def export(self, spans: Sequence[Any]) -> bool:
        """Export the spans; return whether all exporters have accepted them."""
        results = [exporter.export(spans) for exporter in self._exporters]
        return all(result.name == "SUCCESS" for result in results)

    def make(
        self,
        asked: Asked,
        request: Answered | Failed,
        calls: Sequence[NestedCall],
        sent: int,
    ) -> list[Any]:
        """Return the spans of a request."""
        self._made = []
        self._clock = time.time_ns() - time.monotonic_ns()
        ids = asked.span
        assert ids is not None
        self._trace = ids.trace_id
        caller = trace_context(asked.traceparent)
        self._state = self._trace_state(asked) if caller is not None else None
        route = route_of(asked.path)
        attributes = _attributes(asked, request, route)
        if isinstance(request, Answered):
            began = request.arrived or request.began
            ended, status = max(sent, request.ended), self._unset
        else:
            began = request.ended - round(request.seconds * _NS)
            ended, status = request.ended, self._status(request)
        name = f"{asked.method} {route}" if route else asked.method
        if request.model is not None:
            name = f"infer {request.model.name}"
        parent = None
        if caller is not None:
            parent = self._api.SpanContext(
                self._trace,
                int(caller[1], 16),
                True,
                self._api.TraceFlags(caller[2]),
                self._state,
            )
        kind = self._api.SpanKind.SERVER
        root = self._add(
            name, parent, began, ended, attributes, kind, status, own=ids.span_id
        )
        self._children(root, request, _phases_of(request))
        for call in calls:
            self._nested_call(root, call)
        made, self._made = self._made, []
        return made

    def _trace_state(self, asked: Asked) -> Any:
        if asked.wire is None or not asked.wire.tracestate:
            return None
        text = asked.wire.tracestate.decode("latin-1")
        return self._api.TraceState.from_header([text])

    def _status(self, request: Failed) -> Any:
        # Mistakes of the client are not errors of a server's span.
        if request.status < 500:
            return self._unset
        return self._api.Status(self._api.StatusCode.ERROR, shortened(request.why))

    def _add(
        self,
        name: str,
        parent: Any,
        begin: int,
        end: int,
        attributes: Mapping[str, Any] | None = None,
        kind: Any = None,
        status: Any = None,
        *,
        links: Sequence[Any] = (),
        own: int = 0,
    ) -> Any:
        """Make one span; return its context."""
        context = self._api.SpanContext(
            self._trace,
            own or self._random.getrandbits(64) | 1,
            False,
            self._flags,
            self._state,
        )
        clock = self._clock
        span = self._span(
            name,
            context,
            parent,
            self._resource,
            attributes,
            links=links,
            kind=kind or self._api.SpanKind.INTERNAL,
            status=status or self._unset,
            start_time=begin + clock,
            end_time=end + clock,
            instrumentation_scope=self._scope,
        )
        self._made.append(span)
        return context

    def _nested_call(self, parent: Any, call: NestedCall) -> None:
        """Make the spans of another model's work for a request."""
        attributes = {
            "popgate.model.name": call.model.name,
            "popgate.model.version": call.model.version,
        }
        status = None
        if call.code:
            attributes["error.type"] = call.code
            status = self._api.Status(self._api.StatusCode.ERROR)
        context = self._add(
            call.label, parent, call.began, call.ended, attributes, status=status
        )
        for each in call.nested_calls:
            self._nested_call(context, each)
        if not call.nested_calls and call.device:
            self._children(context, call, _run_phases(call, call.began, call.ended))

    def _children(
        self,
        parent: Any,
        request: Answered | Failed | NestedCall,
        phases: Sequence[_Phase],
    ) -> None:
        for name, begin, end in phases:
            if name == "queue" and request.device:
                self._add(name, parent, begin, end, {"popgate.device": request.device})
            elif name != "batch":
                self._add(name, parent, begin, end)
            else:
                self._batch(parent, request, begin, end)

    def _batch(
        self, parent: Any, request: Answered | Failed | NestedCall, begin: int, end: int
    ) -> None:
        attributes = {
            "popgate.device": request.device,
            "popgate.rows": request.rows,
            "popgate.batch_rows": request.batch_rows,
        }
        run = _run_of(request)
        mates = self._batches.setdefault(run, [])
        while len(self._batches) > _BATCHES:
            del self._batches[next(iter(self._batches))]
        links = [self._api.Link(context) for context in mates]
        batch = self._add("batch", parent, begin, end, attributes, links=links)
        mates.append(batch)
        # The result's way back to the gateway follows.
        self._add("compute", batch, begin, min(begin + request.compute_ns, end))

    def close(self) -> None:
        for exporter in self._exporters:
            exporter.shutdown()


def route_of(path: str) -> str:
    """Return the route of a request to a model, as in openapi.yaml; empty if it has
    none.
    """
    match = _ROUTE.fullmatch(path)
    if match is None:
        return ""
    version = "/versions/{version}" if match["version"] else ""
    return f"{match['prefix']}{{name}}{version}{match['verb']}"


def _attributes(asked: Asked, request: Answered | Failed, route: str) -> dict[str, Any]:
    """Return the attributes of a request's span, by OpenTelemetry's conventions."""
    attributes: dict[str, Any] = {
        "http.request.method": asked.method,
        "url.path": shortened(asked.path),
        "http.response.status_code": 200,
        "client.address": asked.client,
        "popgate.request_id": asked.request_id.decode(),
    }
    if route:
        attributes["http.route"] = route
    if isinstance(request, Failed):
        attributes["http.response.status_code"] = request.status
        attributes["error.type"] = request.code
    if request.model is not None:
        attributes["popgate.model.name"] = request.model.name
        attributes["popgate.model.version"] = request.model.version
    wire = asked.wire
    if wire is not None:
        attributes["url.scheme"] = wire.scheme
        attributes["network.protocol.version"] = wire.version
        host, port = _address(wire.host.decode("latin-1"), wire.scheme)
        if host:
            attributes["server.address"], attributes["server.port"] = host, port
        if wire.user_agent:
            agent = wire.user_agent.decode("latin-1")
            attributes["user_agent.original"] = shortened(agent)
    return attributes


def _address(host: str, scheme: str) -> tuple[str, int]:
    """Return the name and the port in a header ``Host``."""
    name, colon, port = host.rpartition(":")
    if colon and port.isdecimal() and len(port) <= 5:
        return shortened(name.strip("[]")), int(port)
    return shortened(host.strip("[]")), 443 if scheme == "https" else 80


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number above 0. Raises `engine.InvalidConfig`."""
    text = environment.get(name, "").strip() or str(default)
    if not text.isdecimal() or not int(text):
        raise InvalidConfig(f"{name}={text!r}: expected a whole number above 0")
    return int(text)


def _exporters(environment: Mapping[str, str]) -> list[Any]:
    """Return the exporters that ``OTEL_TRACES_EXPORTER`` names.

    Raises `engine.InvalidConfig` for an unknown exporter.
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
            f"{variable}=grpc needs another package: pip install "
            "opentelemetry-exporter-otlp-proto-grpc (or set it to http/protobuf, and "
            "the endpoint to the collector's port for OTLP over HTTP, usually 4318)"
        )
        raise InvalidConfig(msg) from e
    return module.OTLPSpanExporter()


def _phases_of(request: Answered | Failed) -> list[_Phase]:
    """Return the phases that a request reached."""
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
    request: Answered | Failed | NestedCall, begin: int, end: int
) -> list[_Phase]:
    """Return the phases between the queue and the result.

    A failed request may not have reached a batch.
    """
    started = min(begin + request.queue_ns, end)
    if not request.compute_ns and (isinstance(request, Failed) or _has_failed(request)):
        return [("queue", begin, started)]
    return [("queue", begin, started), ("batch", started, end)]


def _has_failed(request: Answered | NestedCall) -> bool:
    return isinstance(request, NestedCall) and bool(request.code)


def _run_of(request: Answered | Failed | NestedCall) -> tuple[object, ...]:
    """Return a key shared by all requests of a batch, made of times measured once for
    the batch.
    """
    return (request.model, request.device, request.compute_ns, request.batch_rows)


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
