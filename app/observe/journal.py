"""Journal of the last requests: slow ones, failed ones, and their log lines.

The request path only stores a tuple of its measurements (`Journal.last`) and compares
one number. Everything else is computed when it is read, or for requests that fail or
are slower than most. For the event loop's thread.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from app.errors import help_address
from app.observe.access_log import AccessLog
from app.observe.log_text import MOST_SHOWN, quoted, shortened
from app.observe.metrics import ModelMetrics
from app.observe.request_ids import SpanIds, trace_context
from app.plugins import SPANS, plugins
from app.sizes import parse_ratio

#: The last parts of paths of requests to a model, known or unknown.
_INFERENCE = ("/infer", "/generate", "/generate_stream", ":predict")
#: Numbers of requests kept: the last ones, the slowest, and the last that failed.
LAST, SLOWEST, FAILED = 1000, 50, 200
#: Slow requests are dropped after this many seconds.
SLOW_FOR = 900
#: Lines of answered requests are gathered for this many seconds, up to this number. The
#: event loop answers no request while it formats the lines.
GATHERED_FOR, MOST_GATHERED = 0.1, 16
#: The fields in the line of a failed request, if it reached that phase.
_OF_FAILED = (
    "client", "key", "model", "device", "batch_size", "queue_ms", "compute_ms",
    "code", "error", "help",
)  # fmt: skip
_NS = 1_000_000_000
_MS = 1_000_000


class Answered(NamedTuple):
    """A request that was answered. Times are nanoseconds of the monotonic clock.

    `arrived` is when its head arrived, 0 if that was not measured. `began` is when its
    body was complete. Then it was decoded, waited `queue_ns`, and ran `compute_ns` on
    `device`. Its batch had `batch_rows` rows, `rows` of them its own. `encoding` is
    when encoding began, and `ended` is the end.
    """

    request_id: bytes
    model: ModelMetrics
    arrived: int
    began: int
    decoded: int
    queue_ns: int
    compute_ns: int
    encoding: int
    ended: int
    rows: int
    batch_rows: int
    device: str
    path: str = ""

    @property
    def total_ns(self) -> int:
        return self.ended - self.began

    def phases(self) -> dict[str, float]:
        """Return the milliseconds of each phase.

        The device's durations are placed on the gateway's clock between decoding and
        encoding. `wake` is the remaining time between them: the result's way back.
        """
        receive = self.began - self.arrived if self.arrived else 0
        wake = self.encoding - self.decoded - self.queue_ns - self.compute_ns
        parts = {
            "receive": receive,
            "decode": self.decoded - self.began,
            "queue": self.queue_ns,
            "compute": self.compute_ns,
            "wake": wake,
            "encode": self.ended - self.encoding,
        }
        return {name: round(max(0, ns) / _MS, 4) for name, ns in parts.items()}


#: An `Answered` as the request path stores it. A plain tuple costs a fifth as much.
Stamps: TypeAlias = tuple[
    bytes, ModelMetrics, int, int, int, int, int, int, int, int, int, str, str
]


class Wire(NamedTuple):
    """Facts about the arrival and the headers of a request, for its span."""

    scheme: str
    version: str
    host: bytes
    user_agent: bytes
    tracestate: bytes

    @classmethod
    def of(cls, scheme: str, version: str, headers: Mapping[bytes, bytes]) -> Wire:
        get = headers.get
        agent, state = get(b"user-agent", b""), get(b"tracestate", b"")
        return cls(scheme, version, get(b"host", b""), agent, state)


class Asked(NamedTuple):
    """The client and the description of its request."""

    request_id: bytes
    method: str
    path: str
    client: str = ""
    #: The value of the header `traceparent`, which names the trace.
    traceparent: bytes = b""
    #: The name of the request's key (docs/how-to/secure.md).
    key: str = ""
    #: The ids of its span, if they were needed before it ended.
    span: SpanIds | None = None
    #: Set only if spans are made.
    wire: Wire | None = None


class NestedCall(NamedTuple):
    """Call to another model for a request: by an ensemble or a Python model.

    Times are as in `Answered`. `code` is empty if the call was answered.
    """

    label: str
    model: ModelMetrics
    began: int
    queue_ns: int
    compute_ns: int
    ended: int
    rows: int
    batch_rows: int
    device: str
    code: str = ""
    nested_calls: Sequence[NestedCall] = ()


class Failed(NamedTuple):
    """A request that failed, or was refused; times as in `Answered`.

    `model` is None if the request reached none. `seconds` is its duration. `arrived`,
    `began` and `decoded` are 0 if it did not reach that phase. `device` is empty if it
    was not queued, and `batch_rows` 0 if its batch has not ended.
    """

    asked: Asked
    model: ModelMetrics | None
    status: int
    code: str
    why: str
    ended: int
    seconds: float
    arrived: int = 0
    began: int = 0
    decoded: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    rows: int = 0
    batch_rows: int = 0
    device: str = ""

    def phases(self) -> dict[str, float]:
        """Return the milliseconds of each reached phase, as in `Answered`. `wake` is
        the time from the last reached phase to its end.
        """
        found: dict[str, int] = {}
        if self.began:
            found["receive"] = self.began - self.arrived if self.arrived else 0
            found["decode"] = (self.decoded or self.ended) - self.began
        if self.device:
            rest = self.ended - self.decoded - self.queue_ns - self.compute_ns
            found["queue"] = self.queue_ns
            found["compute"] = self.compute_ns
            found["wake"] = rest
        return {name: round(max(0, ns) / _MS, 4) for name, ns in found.items()}


class Sample(Protocol):
    """Sample of requests with spans: `left` requests without a traceparent are skipped
    before the next.
    """

    left: int


class Recorder(Protocol):
    """Maker of spans of requests, from a plugin of the group `popgate.spans`.

    `dropped` counts requests that lost their spans for want of time.
    """

    @property
    def sampler(self) -> Sample: ...

    @property
    def dropped(self) -> int: ...

    def begin(self, traceparent: bytes) -> SpanIds:
        """Return the ids of a span that is to be recorded later."""

    def record(
        self, asked: Asked, request: Answered | Failed, calls: Sequence[NestedCall]
    ) -> Asked:
        """Record that a request to a model has been sent. Return `asked` with the ids
        of its span.
        """

    def close(self) -> None:
        """Export the waiting spans. Blocks for a few seconds at most."""


def span_recorder() -> Recorder | None:
    """Return the recorder of the first plugin that wants spans; None if none does."""
    for make in plugins(SPANS).values():
        recorder: Recorder | None = make()
        if recorder is not None:
            return recorder
    return None


class Journal:
    """The last requests of a gateway, its access log, and the maker of their spans.

    `spans` receives every request to a model, answered or failed. The model may be
    unknown, and the request refused.
    """

    def __init__(
        self, access: AccessLog | None = None, spans: Recorder | None = None
    ) -> None:
        self.access = access or AccessLog()
        self.spans = spans
        #: The tuples that the request path appends.
        self.last: deque[Stamps] = deque(maxlen=LAST)
        #: Requests that take longer, in nanoseconds, must be passed to `keep_slow`.
        self.slow_ns = 0
        self.failed: deque[Failed] = deque(maxlen=FAILED)
        #: Whether answered requests must be passed to `log_answered`.
        self.samples = self.access.samples or spans is not None
        #: The traces of requests passed to `log_answered`, by request id.
        self._traces: dict[bytes, str] = {}
        self._gathered: list[tuple[Asked, Answered, int]] = []
        self._slow: list[tuple[int, int, Stamps]] = []  # a heap, the quickest first
        self._look_at = 0  # when slow ones may be old enough to be forgotten

    def set_access(self, text: str) -> None:
        """Log from now on the share of requests that `text` states."""
        self.access.set_ratio(parse_ratio(text))
        self.samples = self.access.samples or self.spans is not None

    def keep_slow(self, stamps: Stamps) -> None:
        """Keep a request that took longer than `slow_ns`."""
        ended, took = stamps[8], stamps[8] - stamps[3]
        item = (took, ended, stamps)
        if len(self._slow) < SLOWEST:
            heapq.heappush(self._slow, item)
        else:
            heapq.heapreplace(self._slow, item)
        if len(self._slow) >= SLOWEST:
            self._let_go(ended)

    def _let_go(self, now: int) -> None:
        """Forget old slow requests, and compute how slow the next must be."""
        if now >= self._look_at:
            self._look_at = now + _NS
            self._slow = [s for s in self._slow if now - s[1] <= SLOW_FOR * _NS]
            heapq.heapify(self._slow)
        self.slow_ns = self._slow[0][0] if len(self._slow) >= SLOWEST else 0

    def slowest(self) -> list[Answered]:
        """Return the slowest requests of the last quarter of an hour, the slowest
        first.
        """
        self._let_go(time.monotonic_ns())
        ordered = sorted(self._slow, key=lambda item: item[0], reverse=True)
        return [Answered._make(stamps) for _, _, stamps in ordered]

    def answered(self) -> Iterator[Answered]:
        """Yield the last requests that were answered, the newest first."""
        return map(Answered._make, reversed(self.last))

    def snapshot(self) -> dict[str, list[Any]]:
        """Return the kept requests as a value for msgpack, for another process."""

        def plain(stamps: Stamps) -> list[Any]:
            return [(stamps[1].name, stamps[1].version), stamps[0], *stamps[2:]]

        return {
            "last": list(map(plain, self.last)),
            "slow": [plain(stamps) for _, _, stamps in self._slow],
            "failed": [
                [model and (model.name, model.version), list(asked[:6]), *rest]
                for asked, model, *rest in self.failed
            ],
        }

    def with_those(
        self,
        told: Iterable[Mapping[str, Sequence[Any]]],
        model: Callable[[str, str], ModelMetrics],
    ) -> Journal:
        """Return a journal that also has the facts of other processes; read only.

        `model` gives the numbers of a version.
        """
        whole = Journal()
        last, slow, failed = list(self.last), list(self._slow), list(self.failed)
        for one in told:
            for key, request_id, *rest in one["last"]:
                last.append((request_id, model(*key), *rest))
            for key, request_id, *rest in one["slow"]:
                stamps: Stamps = (request_id, model(*key), *rest)
                slow.append((stamps[8] - stamps[3], stamps[8], stamps))
            for key, asked, *rest in one["failed"]:
                found = None if key is None else model(*key)
                failed.append(Failed(Asked(*asked), found, *rest))
        whole.last.extend(sorted(last, key=lambda stamps: stamps[8]))
        whole.failed.extend(sorted(failed, key=lambda one: one.ended))
        for _, _, stamps in slow:
            whole.keep_slow(stamps)
        whole._traces = self._traces
        return whole

    def log_answered(
        self, asked: Asked, answered: Answered, calls: Sequence[NestedCall] = ()
    ) -> None:
        """Log a request whose answer was sent, if it is in the sample."""
        if asked.traceparent:
            self._keep_trace(asked)
        if self.spans is not None:
            asked = self.spans.record(asked, answered, calls)
        if self.access.wants_answered():
            self._gathered.append((asked, answered, time.monotonic_ns()))
            if len(self._gathered) == 1:
                self._write_soon()
            elif len(self._gathered) >= MOST_GATHERED:
                self.write_gathered()

    def _write_soon(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.write_gathered()
        else:
            loop.call_later(GATHERED_FOR, self.write_gathered)

    def write_gathered(self) -> None:
        """Write the gathered lines. One write for all costs less."""
        gathered, self._gathered = self._gathered, []
        offset = time.time() - time.monotonic()
        for asked, answered, sent in gathered:
            self._write_answered(asked, answered, sent, offset + sent / _NS)

    def _write_answered(
        self, asked: Asked, answered: Answered, sent: int, ended: float
    ) -> None:
        took = sent - (answered.arrived or answered.began)
        fields = {
            "model": answered.model.name,
            "version": answered.model.version,
            "device": answered.device,
            "rows": answered.rows,
            "batch_size": answered.batch_rows,
        }
        phases = {f"{n}_ms": ms for n, ms in answered.phases().items()}
        self._log(asked, 200, took / _NS, {**fields, **phases}, ended)

    def _keep_trace(self, asked: Asked) -> None:
        trace = trace_context(asked.traceparent)
        if trace is not None:
            self._traces[asked.request_id] = trace[0]
            if len(self._traces) > LAST:
                del self._traces[next(iter(self._traces))]

    def trace_of(self, request_id: bytes) -> str:
        """Return the trace of one of the last requests; empty if it is not known."""
        return self._traces.get(request_id, "")

    def fail(self, failed: Failed, calls: Sequence[NestedCall] = ()) -> None:
        """Keep a failed request, and write a log line for it."""
        asks_model = failed.model is not None or failed.asked.path.endswith(_INFERENCE)
        if len(failed.asked.path) > MOST_SHOWN or len(failed.why) > MOST_SHOWN:
            asked = failed.asked._replace(path=shortened(failed.asked.path))
            failed = failed._replace(asked=asked, why=shortened(failed.why))
        if failed.asked.wire is None:
            self.failed.append(failed)
        else:  # unread headers may be large
            asked = failed.asked._replace(wire=None)
            self.failed.append(failed._replace(asked=asked))
        # Other requests, for example a scanner's, have no spans.
        if self.spans is not None and asks_model:
            asked = self.spans.record(failed.asked, failed, calls)
            failed = failed._replace(asked=asked)
        if not self.access.is_on:
            return
        self.write_gathered()  # keeps lines in the order of the ends
        fields: dict[str, Any] = {}
        if failed.model is not None:
            fields |= {"model": failed.model.name, "version": failed.model.version}
        if failed.device:
            fields |= {"device": failed.device, "rows": failed.rows}
        if failed.batch_rows:
            fields["batch_size"] = failed.batch_rows
        fields |= {f"{name}_ms": ms for name, ms in failed.phases().items()}
        fields |= {"code": failed.code, "error": shortened(failed.why)}
        if failed.code:
            fields["help"] = help_address(failed.code)
        self._log(failed.asked, failed.status, failed.seconds, fields)

    def log_without_model(self, asked: Asked, status: int, seconds: float) -> None:
        """Log an answered request without a model."""
        if self.access.wants_answered():
            self.write_gathered()
            self._log(asked, status, seconds, {})

    def _log(
        self,
        asked: Asked,
        status: int,
        seconds: float,
        fields: dict[str, Any],
        ended: float | None = None,
    ) -> None:
        ms = round(seconds * 1000, 3)
        request_id = asked.request_id.decode()
        trace = trace_context(asked.traceparent)
        trace_id = "" if trace is None else trace[0]
        span = asked.span
        has_span = span is not None and span.is_sampled
        head = {
            "request_id": request_id,
            "method": asked.method,
            "path": shortened(asked.path),
            "status": status,
            "total_ms": ms,
            "client": asked.client,
            "key": asked.key,
            "trace_id": f"{span.trace_id:032x}" if span and has_span else trace_id,
            "span_id": f"{span.span_id:016x}" if span and has_span else "",
        }
        known = {name: value for name, value in head.items() if value != ""}
        path = quoted(asked.path)
        line = f"{asked.method} {path} {status} {ms} ms id={quoted(request_id)}"
        names = "client", "key", "model", "batch_size", "code", "error"
        for name in names if status < 400 else _OF_FAILED:
            value = fields.get(name, known.get(name))
            if value is not None:
                line += f" {name}={quoted(value)}"
        self.access.write(line, status, {**known, **fields}, ended)

    def __repr__(self) -> str:
        return f"<Journal {len(self.last)} answered, {len(self.failed)} failed>"
