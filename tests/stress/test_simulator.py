"""The request path under schedules that a seed chooses (bench/fuzzers/simulator.py)."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from bench.fuzzers.simulator import KINDS, simulate
from bench.servers.server import ROOT
from engine.worker import scheduler
from tests.support import WAIT

#: Compiled code looks at the machine's clock.
pytestmark = pytest.mark.skipif(
    not scheduler.__file__.endswith(".py"), reason="the engine is compiled"
)
SEEDS = 150
#: What seeds have found, each with its cause.
FOUND = {
    162: "a request that moved to another device kept its number, and its result was "
    "dropped behind a failed request with a higher one",
    38: "a request that moved was ahead of requests of its line",
    481: "a device waited again and again for a request whose client had ended",
    576: "the same, with rows of different length",
    176: "rows that were computed in the ring were overwritten by those before them",
}


def test_every_request_ends_once_and_rightly() -> None:
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = simulate(seed)
        assert not world.faults, f"seed {seed}: {world.faults}"
        counts += world.counts
        kinds[world.kind] += 1
    assert set(kinds) == set(KINDS)
    # What is to happen does happen.
    for what in ("death", "client", "reload", "stalled", "refused", "copied", "aside"):
        assert counts[what] > 10, counts
    for error in ("Cancelled", "DeadlineExceeded", "DeviceLost", "ExecutionFailed"):
        assert counts[error] > 10, counts


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_does_not_come_back(seed: int) -> None:
    assert not simulate(seed, models=1).faults


def test_a_seed_is_one_schedule() -> None:
    first, second = simulate(7), simulate(7)
    assert first.counts == second.counts
    times = ([line.split()[0] for line in world.log] for world in (first, second))
    assert next(times) == next(times)


def test_several_processes_run_all_seeds() -> None:
    command = [sys.executable, "-m", "bench.fuzzers.simulator", "30"]
    done = subprocess.run(
        [*command, "--processes", "2"],
        cwd=ROOT, capture_output=True, text=True, timeout=WAIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = sum(simulate(seed).counts["submit"] for seed in range(30))
    assert done.stdout.startswith("30 seeds in "), done.stdout
    assert f"0 failed; Counter({{'submit': {expected}," in done.stdout
