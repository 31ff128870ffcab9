"""The failures of a run: who pays, and when a model is out of service.

Covers: engine/run_failures.py.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine import Device, ExecutionFailed, InvalidInput, OutOfMemory, run_failures
from engine.run_failures import (
    MOST,
    RUN_FAILURES,
    FailureCounts,
    ResultsNotTaken,
    RunFailure,
    failure_of_error,
)
from engine.worker.failure_isolation import isolate_failure
from tests.support import until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "failures.md"


def _row(failure: RunFailure) -> str:
    price = RUN_FAILURES[failure]
    request = f"`{price.request}`" if price.request else "none is left"
    members = "those that fail alone" if price.halves else "all of the batch"
    device = "restarted" if price.device else "stays"
    model = "counted" if price.counts else "stays"
    return f"| {failure.value} | {request} | {members} | {device} | {model} |"


TABLE = "\n".join(
    [
        "| failure | its requests | who of a batch | device | model |",
        "|---|---|---|---|---|",
        *(_row(failure) for failure in RunFailure),
    ]
)


def test_what_was_at_work_alone_is_blamed() -> None:
    found = FailureCounts()
    assert found.judge("SIGSEGV", "").culprit == ""
    death = found.judge("SIGSEGV", "runs")
    assert (death.culprit, death.times) == ("runs", 1)
    assert str(death) == "its process died of SIGSEGV, while model 'runs' was running"
    with found.loading("loads"):
        assert found.judge("SIGBUS", "").culprit == "loads"
        # A warm-up of what is loaded.
        assert found.judge("SIGBUS", "loads").times == 2
        assert found.judge("SIGSEGV", "runs").culprit == ""
        with found.loading("other"):
            assert found.judge("SIGSEGV", "").culprit == ""
    assert found.judge("SIGSEGV", "").culprit == ""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_what_comes_from_outside_is_nobodys_doing(how: str) -> None:
    assert str(FailureCounts().judge(how, "runs")) == f"its process died of {how}"


def test_failures_in_a_row_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = FailureCounts()
    often = [found.judge("SIGSEGV", "runs") for _ in range(MOST)]
    assert [death.is_once_too_often for death in often] == [False] * (MOST - 1) + [True]
    assert not found.judge("SIGSEGV", "other").is_once_too_often
    assert found.judge("SIGSEGV", "runs", succeeded=True).times == 1
    assert found.judge("SIGSEGV", "runs").times == 2
    monkeypatch.setattr(run_failures, "WINDOW", 0.0)
    assert found.judge("SIGSEGV", "runs").times == 1


def test_the_pause_doubles_and_ends_with_a_success() -> None:
    found, pauses = FailureCounts(), []
    for _ in range(MOST - 1):
        found.count(RunFailure.TOO_LONG, "runs", succeeded=False)
        pauses.append(math.ceil(found.pause("runs")))
    assert pauses == [0, 1, 2, 4]
    found.count(RunFailure.TOO_LONG, "runs", succeeded=True)
    assert found.pause("runs") == 0
    found.forget("runs")
    assert found.times("runs") == 0


@pytest.mark.parametrize("failure", RunFailure, ids=lambda f: f.name)
def test_what_does_not_count_never_takes_a_model_away(failure: RunFailure) -> None:
    found, price = FailureCounts(), RUN_FAILURES[failure]
    times = [found.count(failure, "runs", succeeded=False) for _ in range(MOST)]
    assert times == (list(range(1, MOST + 1)) if price.counts else [0] * MOST)
    # A batch runs again only if the process that ran it is still there.
    assert not (price.halves and price.device)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ResultsNotTaken("full"), RunFailure.NOT_TAKEN),
        (OutOfMemory("none"), RunFailure.NO_MEMORY),
        (InvalidInput("shape"), RunFailure.INVALID),
        (ExecutionFailed("node"), RunFailure.EXCEPTION),
        (ValueError("ours"), RunFailure.EXCEPTION),
    ],
)
def test_a_batch_runs_again_in_halves_as_the_table_says(
    error: Exception, failure: RunFailure
) -> None:
    assert failure_of_error(error) is failure
    failed: list[int] = []
    groups: list[Sequence[int]] = []

    def run(group: Sequence[int]) -> Exception | None:
        groups.append(group)
        return error if 0 in group else None

    isolate_failure([0, 1, 2, 3], error, run, lambda member, _: failed.append(member))
    halves = RUN_FAILURES[failure].halves
    assert failed == ([0] if halves else [0, 1, 2, 3])
    assert bool(groups) is halves


def test_the_page_has_the_table() -> None:
    if TABLE not in PAGE.read_text():
        pytest.fail(f"docs/explanation/failures.md lacks:\n{TABLE}")


def test_how_a_process_ended_is_told(own_device: Device) -> None:
    for number in (signal.SIGSEGV, signal.SIGKILL):
        assert own_device.pid is not None
        os.kill(own_device.pid, number)
        until(lambda: not own_device.check())
        assert own_device.lost_by == f"its process died of {number.name}"
        own_device.recover()
