"""Instances on several machines, which are addresses of the loopback: `make test-mpi`.

Covers: plugins/popxl/src/popir/instances/machines.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.popxl.tests.popir.instances import programs

pytest.importorskip("mpi4py", reason="make test-mpi installs MPI")
PROGRAMS = Path(__file__).parent / "programs.py"
LONG = 120
#: No ssh is needed to reach addresses of this machine.
ENVIRONMENT = {**os.environ, "HYDRA_LAUNCHER": "fork"}
HOSTS = ("--host", "127.0.0.1,127.0.0.2")


def ended(instances: int, *program: str) -> subprocess.CompletedProcess[str]:
    """What `poprun` left of a program of four replicas."""
    command = [
        *(sys.executable, "-c", "from popdist.poprun import main; main()"),
        *("--num-instances", str(instances), "--num-replicas", "4", *HOSTS),
        *(sys.executable, str(PROGRAMS), *program),
    ]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LONG, env=ENVIRONMENT
    )


def test_the_same_bits_as_in_one_process(capfd: pytest.CaptureFixture[str]) -> None:
    programs.bits("4")
    expected = sorted(capfd.readouterr().out.splitlines())
    assert len(expected) == 4 + 4 * programs.RANDOM
    for instances in (2, 4):
        done = ended(instances, "bits")
        assert sorted(done.stdout.splitlines()) == expected, done.stderr
        assert done.returncode == 0


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("one_fails", "ValueError: no more data"),
        ("one_ends", "instance 1 has left the program"),
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
