"""Several instances of one program, started by `poprun`: real processes.

Covers: plugins/popxl/src/popir/instances/launcher.py,
    plugins/popxl/src/popir/instances/exchange.py,
    plugins/popxl/src/popir/instances/connection.py,
    plugins/popxl/src/popir/instances/span.py, plugins/popxl/src/popdist/__init__.py,
    plugins/popxl/src/popdist/popart.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from plugins.popxl.tests.popir.instances import programs
from tests.support import is_gone, until

PROGRAMS = Path(__file__).parent / "programs.py"
#: Seconds after which a process that should have ended is taken for one that hangs.
LONG = 120


def command(instances: int, replicas: int, *program: str) -> list[str]:
    """The command that starts instances of one of the programs."""
    return [
        *(sys.executable, "-c", "from popdist.poprun import main; main()"),
        *("--num-instances", str(instances), "--num-replicas", str(replicas)),
        *(sys.executable, str(PROGRAMS), *program),
    ]


def started(instances: int, replicas: int, *program: str) -> subprocess.Popen[str]:
    """The command, running."""
    return subprocess.Popen(
        command(instances, replicas, *program),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(given: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The command, when it has ended."""
    return subprocess.run(given, capture_output=True, text=True, timeout=LONG)


def pids_of(process: subprocess.Popen[str], count: int) -> dict[int, int]:
    """The process of each instance, when all have said that they are ready."""
    assert process.stdout is not None
    found: dict[int, int] = {}
    while len(found) < count:
        line = process.stdout.readline()
        assert line, "it ended before all were ready"
        word, index, pid = line.split()
        assert word == "ready"
        found[int(index)] = int(pid)
    return found


def test_the_same_bits_in_any_layout(capfd: pytest.CaptureFixture[str]) -> None:
    programs.bits("4")
    expected = sorted(capfd.readouterr().out.splitlines())
    assert len(expected) == 4 + 4 * programs.RANDOM
    for instances in (2, 4):
        done = ended(command(instances, 4, "bits"))
        assert sorted(done.stdout.splitlines()) == expected, done.stderr
        assert done.returncode == 0


def test_values_of_several_pieces() -> None:
    done = ended(command(2, 4, "large"))
    assert sorted(done.stdout.splitlines()) == programs.large_expected(4), done.stderr


def test_one_of_four_is_killed() -> None:
    process = started(4, 4, "for_ever")
    pids = pids_of(process, 4)
    os.kill(pids[2], signal.SIGKILL)
    _, errors = process.communicate(timeout=LONG)
    assert process.returncode == 128 + signal.SIGKILL
    assert "poprun: instance 2 ended with SIGKILL" in errors
    assert all(map(is_gone, pids.values()))


def test_interrupted() -> None:
    process = started(2, 2, "one_waits")
    pids = pids_of(process, 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LONG)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert all(map(is_gone, pids.values()))


def test_the_launcher_is_killed() -> None:
    process = started(2, 2, "one_waits")
    pids = pids_of(process, 2)
    process.kill()
    process.communicate(timeout=LONG)
    until(lambda: all(map(is_gone, pids.values())))


def test_one_fails() -> None:
    done = ended(command(2, 2, "one_fails"))
    assert done.returncode == 1
    assert "ValueError: no more data" in done.stderr
    assert "poprun: instance 1 ended with exit code 1" in done.stderr


def test_one_ends_early() -> None:
    done = ended(command(2, 2, "one_ends"))
    assert done.returncode == 1
    assert "instance 1 has ended" in done.stderr
    assert "poprun: instance 0 ended with exit code 1" in done.stderr


def test_one_of_a_pair_ends_early() -> None:
    done = ended(command(4, 4, "one_of_a_pair_ends"))
    assert done.returncode == 1
    assert "instance 1 has ended" in done.stderr
    assert "poprun: instance 3 ended with exit code 1" in done.stderr


def test_one_leaves_and_stays() -> None:
    done = ended(command(2, 2, "one_stays"))
    assert done.returncode == 1
    assert "instance 1 has ended" in done.stderr


def test_instances_that_run_different_programs() -> None:
    done = ended(command(2, 2, "others"))
    assert done.returncode == 1
    assert "have left the lockstep" in done.stderr
    assert "float32[5]" in done.stderr


def test_branches_to_a_collective() -> None:
    done = ended(command(2, 4, "branches"))
    assert sorted(done.stdout.splitlines()) == ["0 2.0 1.0", "2 2.0 1.0"]
    assert done.returncode == 1
    assert "replicated_all_reduce" in done.stderr
    assert "replicas [3] do not reach it, which replicas [1] wait for" in done.stderr


def test_what_instances_know_and_show() -> None:
    given = command(2, 4, "who")
    at = given.index("--num-instances")
    given[at:at] = [
        *("--only_output_from_instance", "1", "--vipu-partition", "P"),
        *("--remove-partition", "no", "--update-partition", "yes"),
        *("--ipus-per-replica", "2", "--mpi-local-args=-x A=7 -x HOME", "-v"),
        *("--tag-output", "yes"),
    ]
    done = ended(given)
    assert done.stdout == "[1,1]<stdout>:1 2 4 2 2 True 7\n"
    assert "[1,1]<stderr>:error line of 1" in done.stderr
    assert "error line of 0" not in done.stderr
    assert "--vipu-partition has no effect" in done.stderr
    assert done.returncode == 0


def test_errors_of_an_instance_that_is_not_shown() -> None:
    given = command(2, 2, "one_fails")
    at = given.index("--num-instances")
    given[at:at] = ["--only-output-from-instance", "0"]
    done = ended(given)
    assert "ValueError: no more data" in done.stderr
