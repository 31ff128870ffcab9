"""The measuring programs themselves: right answers, honest counts, both clients."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench.compare import check_answer, parse
from bench.load import drive, has_wrk
from bench.models import write_models
from bench.payloads import Payload
from bench.reference import open_session
from bench.scenarios import SCENARIOS, Scenario
from bench.serving import Server, free_port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx")
    write_models(path, "small", "middle", "large")
    return path


@pytest.fixture(scope="module")
def reference(folder: Path) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "bench.reference"]
    command += ["--models", str(folder), "--port", str(port)]
    with Server(command, port, name="reference") as server:
        server.wait_ready()
        yield server


def expected(folder: Path, scenario: Scenario) -> np.ndarray:
    session = open_session(folder / f"{scenario.model}.onnx")
    (y,) = session.run(None, scenario.inputs())
    return np.asarray(y)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_reference_answers_right(
    reference: Server, folder: Path, scenario: Scenario
) -> None:
    check_answer(reference, scenario, expected(folder, scenario))


def test_a_wrong_answer_is_seen(reference: Server, folder: Path) -> None:
    scenario = SCENARIOS["S-json"]
    with pytest.raises(AssertionError):
        check_answer(reference, scenario, expected(folder, scenario) + 1)


@pytest.mark.parametrize("wrk", [True, False], ids=["wrk", "own"])
def test_clients_count(reference: Server, wrk: bool) -> None:
    if wrk and not has_wrk():
        pytest.skip("wrk is not installed")
    scenario = SCENARIOS["S-json"]
    before = reference.cpu()
    payload = scenario.encode(scenario.inputs())
    load = drive(f"{reference.url}/v2/models/small/infer", payload, 4, 1, wrk=wrk)
    assert load.requests > 0
    assert (load.not_ok, load.broken) == (0, 0)
    assert 0 < load.p50 <= load.p99 < 1
    assert reference.cpu() > before


@pytest.mark.parametrize("wrk", [True, False], ids=["wrk", "own"])
def test_clients_see_errors(reference: Server, wrk: bool) -> None:
    if wrk and not has_wrk():
        pytest.skip("wrk is not installed")
    load = drive(f"{reference.url}/nowhere", Payload({}, b""), 2, 1, wrk=wrk)
    assert load.requests == load.not_ok > 0


def test_unknown_scenarios_are_refused() -> None:
    with pytest.raises(SystemExit):
        parse(["--scenarios", "S-json,nothing"])
