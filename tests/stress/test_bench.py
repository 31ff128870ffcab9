"""The measuring programs themselves: right answers, honest counts, both clients.

Covers: bench/calls.py, bench/servers/call_counter.py.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from bench.calls import count
from bench.cases.models import write_models
from bench.cases.payloads import Payload
from bench.cases.scenarios import SCENARIOS, VARIED, Mode, Request, Scenario
from bench.compare import CHECKED, Cell, Run, check_answer, parse, sent, table
from bench.drivers.load import Load, drive, has_wrk, prepared
from bench.servers.reference import open_session
from bench.servers.server import ROOT, Server, free_port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx")
    write_models(path, "small", "middle", "large")
    return path


@pytest.fixture(scope="module")
def reference(folder: Path) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "bench.servers.reference"]
    command += ["--models", str(folder), "--port", str(port)]
    with Server(command, port, name="reference") as server:
        server.wait_ready()
        yield server


def expected(folder: Path, scenario: Scenario, request: Request) -> np.ndarray:
    session = open_session(folder / f"{scenario.model}.onnx")
    (y,) = session.run(None, request.inputs)
    return np.asarray(y)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_reference_answers_right(
    reference: Server, folder: Path, scenario: Scenario, mode: Mode
) -> None:
    for number, request in enumerate(scenario.requests(mode)):
        if number in CHECKED:
            answer = expected(folder, scenario, request)
            check_answer(reference, scenario, request, answer)


def test_a_wrong_answer_is_seen(reference: Server, folder: Path) -> None:
    scenario = SCENARIOS["S-json"]
    (request,) = scenario.requests(Mode.SAME)
    answer = expected(folder, scenario, request)
    with pytest.raises(AssertionError):
        check_answer(reference, scenario, request, answer + 1)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_varied_requests_share_nothing(scenario: Scenario) -> None:
    """Not the numbers, the id, the trace or the Content-Length."""
    numbers, ids, traces, sizes = set(), set(), set(), set()
    for request in scenario.requests(Mode.VARIED):
        numbers.add(request.inputs["x"].tobytes())
        ids.add(request.id)
        traces.add(request.payload.headers["traceparent"])
        sizes.add(len(request.payload.body))
        assert request.id is not None
        assert request.id.encode() in request.payload.body
    assert [len(each) for each in (numbers, ids, traces, sizes)] == [VARIED] * 4


def test_the_same_bytes_are_one_request() -> None:
    (request,) = SCENARIOS["S-json"].requests(Mode.SAME)
    assert request.id is None
    assert "traceparent" not in request.payload.headers


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("wrk", [True, False], ids=["wrk", "own"])
def test_clients_count(reference: Server, wrk: bool, mode: Mode) -> None:
    if wrk and not has_wrk():
        pytest.skip("wrk is not installed")
    before = reference.cpu()
    with sent(SCENARIOS["S-json"], [mode]) as requests:
        load = drive(reference.url, requests[mode], 4, 1, wrk=wrk)
    assert load.requests > 0
    assert (load.not_ok, load.broken) == (0, 0)
    assert 0 < load.p50 <= load.p99 < 1
    assert load.client > 0
    assert reference.cpu() > before


@pytest.mark.parametrize("wrk", [True, False], ids=["wrk", "own"])
def test_clients_see_errors(reference: Server, wrk: bool) -> None:
    if wrk and not has_wrk():
        pytest.skip("wrk is not installed")
    with prepared("/nowhere", [Payload({}, b"")]) as requests:
        load = drive(reference.url, requests, 2, 1, wrk=wrk)
    assert load.requests == load.not_ok > 0


class Recorder(ThreadingHTTPServer):
    """Keeps what is posted: the trace, and the length and bytes of the body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Recording)
        self.seen: list[tuple[str, int, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Recording(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recorder

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        body = self.rfile.read(size)
        self.server.seen.append((self.headers["traceparent"], size, body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("wrk", [True, False], ids=["wrk", "own"])
def test_clients_send_whole_requests_in_turn(recorder: Recorder, wrk: bool) -> None:
    if wrk and not has_wrk():
        pytest.skip("wrk is not installed")
    scenario = SCENARIOS["M-binary"]
    payloads = [r.payload for r in islice(scenario.requests(Mode.VARIED), 16)]
    with prepared(scenario.path, payloads) as requests:
        load = drive(recorder.url, requests, 1, 1, wrk=wrk)
    assert load.requests > len(payloads)
    assert len(recorder.seen) >= load.requests
    right = [(p.headers["traceparent"], len(p.body), p.body) for p in payloads]
    # wrk makes one on its own first, to see how many it has in it.
    first = right.index(recorder.seen[0])
    in_turn = [right[(first + n) % len(right)] for n in range(len(recorder.seen))]
    assert recorder.seen == in_turn


def a_cell(mode: Mode, ratio: float, required: float | None) -> Cell:
    load = Load(1000, 1.0, 0.001, 0.002, 0, 0)
    gateway = Load(int(1000 * ratio), 1.0, 0.001, 0.002, 0, 0)
    runs = (Run(load, 1e-5),), (Run(gateway, 1e-5),)
    return Cell("M-json", 16, mode, required, *runs)


def test_the_table_has_a_line_for_both_modes() -> None:
    cells = [a_cell(Mode.VARIED, 2.5, 2.8), a_cell(Mode.SAME, 3.5, None)]
    assert table(cells).splitlines() == [
        "gateway / reference  varied    same    need",
        "M-json           16   x2.50   x3.50   x2.80 FAIL",
    ]


@pytest.mark.parametrize("arguments", [["--modes", "nothing"], ["--modes", ""]])
def test_unknown_modes_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)


def test_varied_is_the_normal_mode() -> None:
    assert parse([]).modes == [Mode.VARIED, Mode.SAME]


def test_unknown_scenarios_are_refused() -> None:
    with pytest.raises(SystemExit):
        parse(["--scenarios", "S-json,nothing"])


def test_the_map_tells_how_many_calls_a_request_takes(tmp_path: Path) -> None:
    found = count(SCENARIOS["S-json"], tmp_path)
    gateway, device = found.gateway, found.device
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    (stated,) = re.findall(
        r"(\d+) Python calls in (\d+) of our files in the gateway and (\d+) in (\d+) "
        r"files in the device process: (\d+) in (\d+) different files",
        text,
    )
    counted = (
        *(gateway.total, len(gateway.by_file), device.total, len(device.by_file)),
        *(found.total, found.files),
    )
    # On a busy machine a device finds the next request before it sleeps, or after.
    # The sum of both may be off by what either may.
    bounds = (2, 2, 2, 2, 4, 2)
    assert list(map(int, stated)) == [
        pytest.approx(n, abs=bound) for n, bound in zip(counted, bounds, strict=True)
    ]
    assert int(stated[4]) <= 100
    assert int(stated[5]) <= 30
    # Every file of the path is in the list of its steps.
    steps = text.partition("| Step | Call | File |")[2].partition("\n\n")[0]
    files = gateway.by_file.keys() | device.by_file.keys()
    assert [file for file in files if f"(../../{file})" not in steps] == []
