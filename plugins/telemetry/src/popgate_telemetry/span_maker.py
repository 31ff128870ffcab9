"""`SpanMaker`: makes the spans of a request from what was measured."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from random import Random, SystemRandom
from typing import Any

from app.about import VERSION
from app.observe.journal import Answered, Asked, Failed, NestedCall
from app.observe.log_text import shortened
from app.observe.request_ids import trace_context
from engine import InvalidConfig
from popgate_telemetry.exporters import NEEDS_MORE, exporters

_ROUTE = re.compile(
    r"(?P<prefix>.*/v[12]/models/)[^/:]+(?P<version>/versions/[^/]+)?(?P<verb>[/:]\w+)"
)
#: The number of batches that are remembered for further members. The spans of one batch
#: link to each other.
_BATCHES = 64
_NS = 1_000_000_000

#: A phase of a request: its name, its begin and its end.
_Phase = tuple[str, int, int]


class SpanMaker:
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
            raise InvalidConfig(NEEDS_MORE) from e
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
        self._exporters = exporters(environment)
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
