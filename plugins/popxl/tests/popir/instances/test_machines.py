"""Instances on several machines, which are addresses of the loopback: `make test-mpi`.

Covers: plugins/popxl/src/popir/instances/machines.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.popxl.tests.popir.instances import programs
from plugins.popxl.tests.popir.instances.test_launcher import pids_of
from popdist.poprun import mpiexec
from tests.support import is_gone, until

pytest.importorskip("mpi4py", reason="make test-mpi installs MPI")
PROGRAMS = Path(__file__).parent / "programs.py"
LONG = 120
#: No ssh is needed to reach addresses of this machine.
ENVIRONMENT = {**os.environ, "HYDRA_LAUNCHER": "fork"}
HOSTS = ("--host", "127.0.0.1,127.0.0.2")


@pytest.fixture(autouse=True)
def no_names_stay() -> Iterator[None]:
    """Let no name of MPI's shared memory stay behind."""
    before = set(os.listdir("/dev/shm"))
    yield
    assert set(os.listdir("/dev/shm")) <= before


def command(instances: int, *program: str) -> list[str]:
    """`poprun` with a program of four replicas."""
    return [
        *(sys.executable, "-c", "from popdist.poprun import main; main()"),
        *("--num-instances", str(instances), "--num-replicas", "4", *HOSTS),
        *(sys.executable, str(PROGRAMS), *program),
    ]


def ended(instances: int, *program: str) -> subprocess.CompletedProcess[str]:
    """What `poprun` left of a program of four replicas."""
    return subprocess.run(
        command(instances, *program),
        capture_output=True,
        text=True,
        timeout=LONG,
        env=ENVIRONMENT,
    )


def started(instances: int, *program: str) -> subprocess.Popen[str]:
    """The command, running."""
    return subprocess.Popen(
        command(instances, *program),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def test_the_same_bits_as_in_one_process(capfd: pytest.CaptureFixture[str]) -> None:
    programs.bits("4")
    expected = sorted(capfd.readouterr().out.splitlines())
    assert len(expected) == 4 + 4 * programs.RANDOM
    for instances in (2, 4):
        done = ended(instances, "bits")
        assert sorted(done.stdout.splitlines()) == expected, done.stderr
        assert done.returncode == 0


@pytest.mark.parametrize("instances", [2, 4])
def test_values_of_several_pieces(instances: int) -> None:
    done = ended(instances, "large")
    assert sorted(done.stdout.splitlines()) == programs.large_expected(4), done.stderr


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("one_fails", "ValueError: no more data"),
        ("one_ends", "instance 1 has ended"),
        ("others", "have left the lockstep"),
    ],
)
@pytest.mark.parametrize("instances", [2, 4])
def test_all_end_together(program: str, words: str, instances: int) -> None:
    done = ended(instances, program)
    assert done.returncode != 0
    if (program, instances) == ("one_ends", 2):
        words = "left"  # by the message before the last, or the last
    assert words in done.stderr


def test_the_second_instance_of_a_machine_ends_early() -> None:
    # Its partner, the second of the other machine, waits for it by MPI.
    done = ended(4, "one_of_a_pair_ends")
    assert done.returncode != 0
    assert "instance 1 has ended" in done.stderr
    assert "instance 3 ended with RunError" in done.stderr


@pytest.mark.parametrize("instances", [2, 4])
def test_one_leaves_and_stays(instances: int) -> None:
    done = ended(instances, "one_stays")
    assert done.returncode != 0
    assert "instance 1 has ended" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_one_is_killed_or_all_are_interrupted(number: signal.Signals) -> None:
    process = started(4, "for_ever" if number == signal.SIGKILL else "one_waits")
    pids = pids_of(process, 4)
    if number == signal.SIGKILL:
        os.kill(pids[3], number)
    else:
        process.send_signal(number)
    out, errors = process.communicate(timeout=LONG)
    assert process.returncode != 0
    if number == signal.SIGKILL:
        assert f"PID {pids[3]}" in out + errors
    until(lambda: all(map(is_gone, pids.values())))


def test_a_program_that_mpiexec_starts() -> None:
    command = mpiexec()
    assert command is not None
    given = [command, *("-n", "2", sys.executable, str(PROGRAMS), "who")]
    done = subprocess.run(given, capture_output=True, text=True, timeout=LONG)
    said = ["0 2 2 1 0 True None", "1 2 2 1 1 True None"]
    assert sorted(done.stdout.splitlines()) == said, done.stderr
    assert done.returncode == 0
