"""Spans of a gateway's requests, as a collector gets them.

Covers: app/propagators.py, plugins/telemetry/src/popgate_telemetry/exporters.py,
plugins/telemetry/src/popgate_telemetry/sampler.py,
plugins/telemetry/src/popgate_telemetry/span_maker.py.
"""

from __future__ import annotations

import http.server
import importlib.util
import io
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from app.about import VERSION
from app.observe.journal import Answered, Asked, Failed
from app.observe.metrics import ModelMetrics
from engine import InvalidConfig
from popgate_telemetry.exporters import spans_wanted
from popgate_telemetry.sampler import Sampler
from popgate_telemetry.span_maker import route_of
from popgate_telemetry.spans import Spans, spans_of_environment
from tests.app.served import ServedGateway
from tests.engine import models
from tests.support import until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
PHASES = ["receive", "decode", "queue", "batch", "encode"]
ROW = {"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": " otlp, Console "}, True),
    ],
)
def test_who_wants_spans(environment: dict[str, str], wanted: bool) -> None:
    assert spans_wanted(environment) is wanted


def parent(flags: str) -> bytes:
    return f"00-{TRACE}-{CALLER}-{flags}".encode()


def sampler(name: str = "", share: str = "") -> Sampler:
    names = {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": share}
    return Sampler(names)


def test_samples() -> None:
    few = sampler()
    assert [few.wants(b"") for _ in range(1000)].count(True) == 5
    assert [few.wants(parent("01")) for _ in range(10)] == [True] * 10
    assert not few.wants(parent("00"))
    assert sampler("parentbased_always_on").wants(b"")
    assert not any(sampler("traceidratio", "0").wants(b"") for _ in range(10))
    assert sampler("always_on").wants(parent("00"))
    assert not sampler("always_off").wants(parent("01"))
    for name in ("traceidratio", "parentbased_traceidratio"):
        some = sampler(name, "0.25")
        assert [some.wants(b"") for _ in range(8)].count(True) == 2


@pytest.mark.parametrize(
    ("name", "share"), [("some", "1"), ("traceidratio", "2"), ("traceidratio", "x")]
)
def test_samplers_that_are_not_known(name: str, share: str) -> None:
    with pytest.raises(InvalidConfig, match="OTEL_TRACES_SAMPLER="):
        sampler(name, share)


def test_what_cannot_be_had_keeps_nobody_from_starting(tmp_path: Path) -> None:
    models.affine(tmp_path / "affine.popef")
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_TRACES_SAMPLER": "of another world",
    }
    with ServedGateway(tmp_path, **variables) as served:
        served.wait_ready()
        line = served.wait_line("cannot create spans")
        assert "OTEL_TRACES_SAMPLER='of another world'" in line
        assert " WARNING " in line
        served.infer("affine", input=[[1.0, 2.0, 3.0, 4.0]])


#: Run when Python starts: `popgate[otel]` is not installed.
WITHOUT_EXTRA = "import sys; sys.modules['opentelemetry.sdk'] = None"


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:9"])
@pytest.mark.parametrize("has_extra", [True, False])
def test_a_propagator_that_is_not_installed(
    tmp_path: Path, has_extra: bool, endpoint: str
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="popgate[otel] is missing")
    (tmp_path / "packages").mkdir()
    if not has_extra:
        (tmp_path / "packages" / "sitecustomize.py").write_text(WITHOUT_EXTRA)
    (tmp_path / "models").mkdir()
    models.affine(tmp_path / "models" / "affine.popef")
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_PROPAGATORS": "tracecontext, baggage,b3multi,jaeger",
        "PYTHONPATH": str(tmp_path / "packages"),
    }
    with ServedGateway(tmp_path / "models", **variables) as served:
        served.wait_ready()
        line = served.wait_line("OTEL_PROPAGATORS")
        assert "b3multi, jaeger is not installed" in line
        served.infer("affine", input=[[1.0, 2.0, 3.0, 4.0]])
        assert served.stop() == 0
        if endpoint and not has_extra:
            assert "pip install 'popgate[otel]'" in served.output


@pytest.mark.parametrize("broken", ["", "raise OSError('broken')"])
def test_all_propagators_are_missing(tmp_path: Path, broken: str) -> None:
    """The rest of OpenTelemetry is imported, and the variable keeps its value. A
    package that cannot be imported is as one that is missing."""
    pytest.importorskip("opentelemetry.sdk", reason="popgate[otel] is missing")
    if broken:
        (tmp_path / "b3.py").write_text(broken)
        (tmp_path / "b3-1.dist-info").mkdir()
        (tmp_path / "b3-1.dist-info" / "METADATA").write_text("Name: b3\nVersion: 1")
        entry = "[opentelemetry_propagator]\nb3 = b3:B3\n"
        (tmp_path / "b3-1.dist-info" / "entry_points.txt").write_text(entry)
    code = (
        "import app, os, fastapi; from app import propagators; "
        "print(propagators.missing, os.environ['OTEL_PROPAGATORS'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OTEL_PROPAGATORS": "b3", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[0] == "['b3'] b3", done.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "pip install opentelemetry-exporter-otlp-proto-grpc",
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL='http/json': expected http/protobuf",
        ),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER='zipkin': expected"),
        (
            {"OTEL_BSP_SCHEDULE_DELAY": "soon"},
            "OTEL_BSP_SCHEDULE_DELAY='soon': expected",
        ),
    ],
)
def test_an_exporter_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
    said: str,
) -> None:
    """Nothing is sent in another protocol than that which was asked for."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    if "grpc" in variables.values() and importlib.util.find_spec("grpc"):
        pytest.skip("the package is installed")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert spans_of_environment() is None
    assert said in caplog.text


def test_spans_on_the_console(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="popgate[otel] is missing")
    models.affine(tmp_path / "affine.popef")
    with ServedGateway(
        tmp_path, OTEL_TRACES_EXPORTER="console", OTEL_TRACES_SAMPLER="always_on"
    ) as served:
        served.wait_ready()
        served.infer("affine", input=[[1.0, 2.0, 3.0, 4.0]])
        assert served.stop() == 0
    spans = [json.loads(line) for line in served.lines if line.startswith("{")]
    assert {"infer affine", *PHASES} <= {span["name"] for span in spans}


class Collector:
    """Takes spans as OpenTelemetry's collectors do, over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.scopes: set[tuple[str, str]] = set()
        self.resource: Any = None
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                collector.take(self.rfile.read(size), self.headers)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Nobody reads it."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_TRACES_SAMPLER": "parentbased_always_on",
        }
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def take(self, body: bytes, headers: Any) -> None:
        import gzip

        trace_service = pytest.importorskip(
            "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
        )
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        message = trace_service.ExportTraceServiceRequest.FromString(body)
        for of_resource in message.resource_spans:
            attributes = of_resource.resource.attributes
            self.resource = of_resource.resource
            self.services |= {
                a.value.string_value for a in attributes if a.key == "service.name"
            }
            for scope in of_resource.scope_spans:
                self.scopes.add((scope.scope.name, scope.scope.version))
                self.spans += scope.spans

    def of(self, request_id: str) -> tuple[Any, dict[str, Any]]:
        """The span of a request, and those of its phases by name."""
        (root,) = [s for s in self.spans if told(s, "popgate.request_id") == request_id]
        return root, {s.name: s for s in self.spans if s.parent_span_id == root.span_id}

    def children(self, span: Any) -> list[Any]:
        """The spans below this one, in their order."""
        found = [s for s in self.spans if s.parent_span_id == span.span_id]
        return sorted(found, key=lambda s: s.start_time_unix_nano)

    def below(self, span: Any) -> list[Any]:
        """All spans below this one, however far down."""
        found = self.children(span)
        return found + [each for child in found for each in self.below(child)]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def told(span: Any, name: str) -> Any:
    """An attribute of a span; None where it has none of that name."""
    for attribute in span.attributes:
        if attribute.key == name:
            return getattr(attribute.value, attribute.value.WhichOneof("value"))
    return None


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http", reason="popgate[otel] is missing"
    )
    collector = Collector()
    yield collector
    collector.close()


def test_spans_of_requests(tmp_path: Path, collector: Collector) -> None:
    models.affine(tmp_path / "affine.popef")
    variables = {**collector.variables, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with ServedGateway(tmp_path, **variables) as served:
        served.wait_ready()

        def ask(request_id: str, body: Any = ROW, **headers: str) -> int:
            mine = {"x-request-id": request_id, **headers}
            path = "/v1/models/affine/infer"
            return served.client.post(path, json=body, headers=mine).status_code

        assert ask("traced", traceparent=parent("01").decode()) == 200
        assert ask("streamed", accept="text/event-stream") == 200
        assert ask("wrong", {"inputs": {}}, traceparent=parent("01").decode()) == 400
        assert ask("not traced", traceparent=parent("00").decode()) == 200
        assert ask("last") == 200
        until(lambda: any(told(s, "popgate.request_id") == "last"
                          for s in collector.spans))  # fmt: skip
        assert served.stop() == 0  # what is left comes at the end
    assert collector.services == {"popgate"}
    root, phases = collector.of("traced")
    assert (root.name, root.kind) == ("infer affine", 2)  # a server's
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, CALLER)
    assert told(root, "http.response.status_code") == 200
    assert told(root, "popgate.model.version") == "1"
    assert list(phases) == ["receive", "decode", "queue", "batch", "encode"]
    times = [
        t
        for s in phases.values()
        for t in (s.start_time_unix_nano, s.end_time_unix_nano)
    ]
    assert times == sorted(times)
    assert root.start_time_unix_nano <= times[0]
    assert times[-1] <= root.end_time_unix_nano
    assert told(phases["batch"], "popgate.device").startswith("cpu:")
    assert told(phases["batch"], "popgate.batch_rows") == 1
    assert phases["receive"].start_time_unix_nano < times[1]
    (compute,) = collector.children(phases["batch"])
    assert compute.name == "compute"
    batch = phases["batch"]
    assert compute.start_time_unix_nano == batch.start_time_unix_nano
    assert compute.start_time_unix_nano < compute.end_time_unix_nano
    assert compute.end_time_unix_nano < batch.end_time_unix_nano  # the way back
    root, phases = collector.of("streamed")
    assert len(phases) == 5
    assert root.trace_id.hex() != TRACE
    root, phases = collector.of("wrong")
    assert (root.trace_id.hex(), list(phases)) == (TRACE, ["receive", "decode"])
    assert told(root, "http.response.status_code") == 400
    assert told(root, "error.type") == "invalid_input"
    asked = [told(s, "popgate.request_id") for s in collector.spans]
    assert "not traced" not in asked


SAYS = """
    from popgate import EngineError

    class Says:
        inputs = {"x": "FP32[-1,4]"}
        outputs = {"y": "FP32[-1,4]", "id": "BYTES[1]", "parent": "BYTES[1]"}

        def load(self, context):
            self.context = context

        def __call__(self, x):
            y = self.context.models["%s"](input=x)["output"]
            try:
                self.context.models["affine"](input=x[:, :1])
            except EngineError:
                pass
            context = self.context
            return {"y": y, "id": [context.request_id], "parent": [context.traceparent]}
"""
COUNTS = """
    class Counts:
        inputs = {"n": "INT32[1]"}
        outputs = {"i": "INT32[1]", "id": "BYTES[1]"}

        def load(self, context):
            self.context = context

        def __call__(self, n):
            for i in range(n[0]):
                yield {"i": [i], "id": [self.context.request_id]}
"""
ADDS = """
    class Adds:
        inputs = {"x": "FP32[1]", "before": "FP32[1]"}
        outputs = {"after": "FP32[1]", "id": "BYTES[1]"}

        def load(self, context):
            self.context = context

        def __call__(self, x, before):
            return {"after": x + before, "id": [self.context.request_id]}
"""
STATE = """
    [sequence]
    [[sequence.state]]
    input = "before"
    output = "after"
"""
CHAIN = """
    [[ensemble.step]]
    model = "affine"
    inputs = { input = "START" }
    outputs = { output = "middle" }
    [[ensemble.step]]
    model = "affine"
    inputs = { input = "middle" }
    outputs = { output = "END" }
"""
ECHO = """
    class Echo:
        inputs = {"input": "FP32[-1,4]"}
        outputs = {"output": "FP32[-1,4]"}

        def load(self, context):
            self.context = context

        def __call__(self, input):
            assert self.context.request_id == "calling", self.context.request_id
            return {"output": self.context.models["chain"](START=input)["END"]}
"""


def fill(root: Path) -> None:
    """Models of every kind that asks others, or answers several times."""
    models.affine(root / "affine.popef")
    files = {"says": SAYS % "affine", "deep": SAYS % "echo", "counts": COUNTS}
    for name, text in {**files, "adds": ADDS, "echo": ECHO}.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(textwrap.dedent(text))
    for name, text in (("adds", STATE), ("chain", CHAIN)):
        (root / name).mkdir(exist_ok=True)
        (root / name / "config.toml").write_text(textwrap.dedent(text))


def outputs_of(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return {o["name"]: o["data"] for o in response.json()["outputs"]}


def run_by_worker(served: ServedGateway, name: str, x: Any) -> bool:
    """Whether it was not the supervisor: the ids that a process makes begin alike."""
    first = served.client.get("/v1/health/live").headers["x-request-id"]
    answer = served.client.post(f"/v1/models/{name}/infer", json={"inputs": {"x": x}})
    return not answer.headers["x-request-id"].startswith(first.partition("-")[0])


def names(spans: Iterable[Any]) -> list[str]:
    ordered = sorted(spans, key=lambda span: span.start_time_unix_nano)
    return [span.name for span in ordered]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_asked_of_others(
    tmp_path: Path, collector: Collector, workers: int
) -> None:
    """The caller's trace is in all that is done on its behalf, and is told to the
    models that do it."""
    fill(tmp_path)
    row = [1.0, 2.0, 3.0, 4.0]
    asked = "ensemble", "calling", "bad step", "streamed", "first", "second", "deep"
    options = "--allow-python", "--workers", str(workers)
    with ServedGateway(tmp_path, *options, **collector.variables) as served:
        served.wait_ready()
        until(lambda: workers == 1 or run_by_worker(served, "says", [[1.0] * 4]))

        def ask(request_id: str, name: str, body: Any, **headers: str) -> Any:
            mine = {"x-request-id": request_id, "traceparent": parent("01").decode()}
            path = f"/v1/models/{name}/infer"
            return served.client.post(path, json=body, headers={**headers, **mine})

        outputs_of(ask("ensemble", "chain", {"inputs": {"START": [row]}}))
        said = outputs_of(ask("calling", "deep", {"inputs": {"x": [row]}}))
        assert said["id"] == ["calling"]
        bad = ask("bad step", "chain", {"inputs": {"START": [[1.0]]}})
        assert bad.status_code == 400
        events = ask(
            "streamed", "counts", {"inputs": {"n": [2]}}, accept="text/event-stream"
        ).text
        assert events.count('"streamed"') == 2
        for number, request_id in enumerate(("first", "second")):
            flags = {"sequence_id": 7, "sequence_start": not number}
            body = {"inputs": {"x": [1.0]}, "parameters": flags}
            found = outputs_of(ask(request_id, "adds", body))
            assert found == {"id": [request_id]}
        path = "/v1/models/says/infer"
        headers = {"x-request-id": "deep"}  # without a trace: one is made
        made = outputs_of(
            served.client.post(path, json={"inputs": {"x": [row]}}, headers=headers)
        )
        assert served.stop() == 0
        assert "opentelemetry" not in served.output
    trees = {request_id: collector.of(request_id) for request_id in asked}
    for request_id, (root, _) in trees.items():
        assert (root.trace_id.hex() == TRACE) == (request_id != "deep")
        ids = [s.trace_id for s in collector.below(root)]
        assert set(ids) <= {root.trace_id}, request_id
    root, below = trees["calling"]
    assert said["parent"] == [f"00-{TRACE}-{root.span_id.hex()}-01"]
    calls = [s for s in collector.below(root) if s.name.startswith(("call", "step"))]
    # The model calls another one, which calls an ensemble, and then makes a mistake.
    steps = ["step 1 (affine)", "step 2 (affine)"]
    assert names(calls) == ["call echo", "call chain", *steps, "call affine"]
    by_name = {s.name: s for s in calls}
    assert by_name["call chain"].parent_span_id == by_name["call echo"].span_id
    assert by_name[steps[0]].parent_span_id == by_name["call chain"].span_id
    assert told(by_name["call affine"], "error.type") == "invalid_input"
    assert names(s for s in below.values() if s.name in PHASES) == PHASES
    root, below = trees["ensemble"]
    assert names(s for s in below.values() if s.name not in PHASES) == steps
    for step in steps:
        assert told(below[step], "popgate.model.name") == "affine"
        queue, batch = collector.children(below[step])
        assert (queue.name, batch.name) == ("queue", "batch")
        assert told(batch, "popgate.device").startswith("cpu:")
        times = [queue.start_time_unix_nano, batch.start_time_unix_nano]
        assert below[step].start_time_unix_nano <= times[0] <= times[1]
        assert batch.end_time_unix_nano <= below[step].end_time_unix_nano
    root, _ = trees["deep"]
    expected = f"00-{root.trace_id.hex()}-{root.span_id.hex()}-01"
    assert made["parent"] == [expected]


FAILS = """
    class Fails:
        inputs = {"x": "FP32[-1,4]"}
        outputs = {"y": "FP32[-1,4]"}

        def __call__(self, x):
            raise RuntimeError("of its own")
"""
ENCODINGS = ("json", "msgpack", "binary", "npy")
#: What is asked in every encoding: the model, its input, what comes.
ASKED = {
    "unary": ("affine", "input", 200),
    "ensemble": ("chain", "START", 200),
    "python": ("says", "x", 200),
    "stream": ("counts", "n", 200),
    "wrong shape": ("affine", "input", 400),
    "wrong step": ("chain", "START", 400),
    "own mistake": ("fails", "x", 500),
    "no such model": ("none", "input", 404),
    "late": ("affine", "input", 504),
}


def encoded(encoding: str, name: str, value: Any) -> tuple[bytes, dict[str, str]]:
    """A request with one input: its body and headers."""
    datatype = {"f": "FP32", "i": "INT32"}[value.dtype.kind]
    tensor: dict[str, Any] = {
        "name": name,
        "shape": list(value.shape),
        "datatype": datatype,
    }
    raw = value.tobytes()
    if encoding == "json":
        tensor["data"] = value.ravel().tolist()
        return json.dumps({"inputs": [tensor]}).encode(), {}
    if encoding == "msgpack":
        body = msgpack.packb({"inputs": [{**tensor, "data": raw}]})
        return body, {"content-type": "application/msgpack"}
    if encoding == "npy":
        np.save(stream := io.BytesIO(), value)
        return stream.getvalue(), {"content-type": "application/x-npy"}
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + raw, {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(len(head)),
    }


def test_one_id_and_one_trace_wherever_a_request_is_seen(
    tmp_path: Path, collector: Collector
) -> None:
    """In the answer's header, the log, the spans and the pages: every encoding of every
    kind of request, whatever becomes of it."""
    root = tmp_path / "models"
    root.mkdir()
    fill(root)
    (root / "fails" / "1").mkdir(parents=True)
    (root / "fails" / "1" / "model.py").write_text(textwrap.dedent(FAILS))
    options = ("--allow-python", "--access-log", "all", "--log-format", "json")
    found: dict[str, tuple[int, str, Any]] = {}
    with ServedGateway(root, *options, **collector.variables) as served:
        served.wait_ready()
        for encoding in ENCODINGS:
            for kind, (model, name, _) in ASKED.items():
                value = np.ones((1, 3 if "wrong" in kind else 4), np.float32)
                if kind == "stream":
                    value = np.array([2], np.int32)
                body, headers = encoded(encoding, name, value)
                request_id = f"{kind.replace(' ', '-')}.{encoding}"
                headers |= {"x-request-id": request_id}
                headers["traceparent"] = parent("01").decode()
                if kind == "stream":
                    headers["accept"] = "text/event-stream"
                elif kind == "python":  # several outputs, and texts among them
                    headers["accept"] = "application/json"
                if kind == "late":
                    headers["x-request-timeout"] = "0.000001"
                path = f"/v1/models/{model}/infer"
                answer = served.client.post(path, content=body, headers=headers)
                page = served.client.get(f"/v1/requests/{request_id}")
                told_id = answer.headers["x-request-id"]
                found[request_id] = answer.status_code, told_id, page
        assert served.stop() == 0
    lines = [json.loads(line) for line in served.lines if line.startswith("{")]
    for request_id, (status, told_id, page) in found.items():
        expected = ASKED[request_id.partition(".")[0].replace("-", " ")][2]
        assert (status, told_id) == (expected, request_id)
        assert page.status_code == 200, f"{request_id}: {page.text}"
        assert page.json()["id"] == request_id
        assert page.json()["status"] == status
        span, _ = collector.of(request_id)
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, CALLER)
        assert told(span, "http.response.status_code") == status, request_id
        (line,) = [s for s in lines if s.get("request_id") == request_id]
        assert (line["trace_id"], line["status"]) == (TRACE, status)


def test_conventions(tmp_path: Path, collector: Collector) -> None:
    """Names and attributes as OpenTelemetry's conventions for HTTP servers have them;
    what the caller's tracestate says goes on."""
    models.affine(tmp_path / "affine.popef")
    options = "--log-format", "json", "--access-log", "all"
    asked = ["one", "versioned", "unknown", "streamed", "not traced"]
    with ServedGateway(tmp_path, *options, **collector.variables) as served:
        served.wait_ready()
        host, _, port = served.url.removeprefix("http://").partition(":")
        for request_id in asked:
            headers = {
                "x-request-id": request_id,
                "user-agent": "spans/1",
                "traceparent": parent(f"0{int(request_id != 'not traced')}").decode(),
                "tracestate": "vendor=abc,other=1",
            }
            path = "/v1/models/affine/infer"
            if request_id == "versioned":
                path = "/v2/models/affine/versions/1/infer"
            elif request_id == "unknown":
                path = "/v1/models/nothing/infer"
            elif request_id == "streamed":
                headers["accept"] = "text/event-stream"
            served.client.post(path, json=ROW, headers=headers)
        assert served.stop() == 0
    assert collector.scopes == {("popgate", VERSION)}
    assert told(collector.resource, "service.version") == VERSION
    routes = ["/v1/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"]
    for request_id, route in zip(asked, [*routes, routes[0], routes[0]], strict=False):
        root, phases = collector.of(request_id)
        for span in (root, *phases.values()):
            assert span.trace_state == "vendor=abc,other=1"
        found = {
            name: told(root, name)
            for name in ("http.route", "url.scheme", "server.address", "server.port",
                         "user_agent.original", "network.protocol.version")
        }  # fmt: skip
        assert found == {
            "http.route": route,
            "url.scheme": "http",
            "server.address": host,
            "server.port": int(port),
            "user_agent.original": "spans/1",
            "network.protocol.version": "1.1",
        }
        named = "POST /v1/models/{name}/infer"
        assert root.name == (named if request_id == "unknown" else "infer affine")
    lines = [json.loads(line) for line in served.lines if line.startswith("{")]
    for request_id in asked:
        (line,) = [s for s in lines if s.get("request_id") == request_id]
        assert line["trace_id"] == TRACE
        if request_id == "not traced":
            assert "span_id" not in line
        else:
            assert line["span_id"] == collector.of(request_id)[0].span_id.hex()


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/models/a:b/infer", ""),
        ("/v1/models/a:predict", "/v1/models/{name}:predict"),
        ("/base/v2/models/a/generate", "/base/v2/models/{name}/generate"),
        ("/openai/v1/embeddings", ""),
        ("/v1/models/a/infer/more", ""),
    ],
)
def test_routes(path: str, route: str) -> None:
    assert route_of(path) == route


class Slow(Collector):
    """Takes nothing before it is told to."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        super().__init__()

    def take(self, body: bytes, headers: Any) -> None:
        self.may_go_on.wait()
        super().take(body, headers)


def test_traces_are_whole_or_not_there() -> None:
    """If more come than can be exported, they are dropped whole, and counted."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    model = ModelMetrics("m", "1")
    slow = Slow()
    try:
        extra = {"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_SCHEDULE_DELAY": "1"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in slow.variables.items():
                patch.setenv(name, value)
            spans = Spans(slow.variables | extra)
        for number in range(40):
            began = time.monotonic_ns()
            answered = Answered(
                b"%d" % number, model, began, began, began, 1, 1, began + 2, began + 3,
                1, 1, "cpu:0", "/v1/models/m/infer",
            )  # fmt: skip
            spans.record(Asked(b"%d" % number, "POST", answered.path), answered)
        assert spans.dropped >= 40 - 2 * 8 - 1
        slow.may_go_on.set()
        spans.close()
    finally:
        slow.may_go_on.set()
        slow.close()
    roots = [s for s in slow.spans if not s.parent_span_id]
    assert len(roots) == 40 - spans.dropped
    for root in roots:
        assert names(slow.below(root)) == [*PHASES[:3], "batch", "compute", "encode"]
    assert len(slow.spans) == 7 * len(roots)


def test_spans_that_cannot_be_exported_are_counted() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        spans = Spans({"OTEL_TRACES_SAMPLER": "always_on"})
    now = time.monotonic_ns()
    failed = Failed(
        Asked(b"1", "POST", "/v1/models/m/infer"), None, 404, "no", "", now, 0
    )
    spans.record(failed.asked, failed)
    spans.close()
    assert spans.dropped == 1


def test_spans_for_which_no_thread_starts_are_counted() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    collector = Collector()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in collector.variables.items():
                patch.setenv(name, value)
            spans = Spans(collector.variables)
        asked = Asked(b"1", "POST", "/v1/models/m/infer")
        failed = Failed(asked, None, 404, "no", "", time.monotonic_ns(), 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            spans.record(asked, failed)
        assert spans.dropped == 1
        spans.record(asked, failed)
        spans.close()
        assert spans.dropped == 1
    finally:
        collector.close()
    assert len(collector.spans) == 1


def test_members_of_a_batch_are_linked(tmp_path: Path, collector: Collector) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from tests.app.served import add

    config = "max_batch_size = 2\nmax_queue_delay = 60\npreferred_batch_sizes = [2]\n"
    add(tmp_path, "pairs", config=config)
    with ServedGateway(tmp_path, **collector.variables) as served:
        served.wait_ready()

        def ask(request_id: str) -> int:
            headers = {"x-request-id": request_id}
            path = "/v1/models/pairs/infer"
            return served.client.post(path, json=ROW, headers=headers).status_code

        with ThreadPoolExecutor() as pool:
            assert list(pool.map(ask, ["one", "two"])) == [200, 200]
        assert served.stop() == 0
    one, two = (collector.of(name)[1]["batch"] for name in ("one", "two"))
    first, second = (one, two) if not one.links else (two, one)
    assert not first.links
    assert [link.span_id for link in second.links] == [first.span_id]
