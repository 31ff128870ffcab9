"""The options of `poprun`.

Covers: plugins/popxl/src/popdist/poprun.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from popdist import poprun


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-instances", "2"], "expected a program"),
        (["--num-replicas", "3", "--num-instances", "2", "true"], "multiple"),
        (["--num-instances", "0", "true"], "1 at least"),
        (["-n", "2", "--only-output-from-instance", "2", "true"], "0 to 1"),
        (["--mpi-local-args=-y A", "true"], "expected -x NAME"),
        (["--num-insances", "2", "true"], "unrecognized arguments: --num-insances"),
        (["no-such-program"], "the program 'no-such-program' was not found"),
    ],
)
def test_what_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        poprun.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("is_beside", [False, True])
def test_hosts_are_mpiexecs(
    is_beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    script = tmp_path / "mpiexec"
    (tmp_path / "bin").mkdir()
    script.write_text(f'#!/bin/sh\necho $POPDIST_NUM_TOTAL_REPLICAS "$@" > {seen}\n')
    script.chmod(0o755)
    beside = tmp_path / "bin"
    if is_beside:
        script = script.rename(beside / script.name)
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    given = ["--host", "a,b", "--num-instances", "4", "--num-replicas", "8", "x.py"]
    pid = os.fork()
    if pid == 0:
        try:
            poprun.main(given)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert seen.read_text() == "8 -hosts a,b -ppn 2 -n 4 x.py\n"


def test_hosts_without_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SystemExit, match=r"popgate\[mpi\]"):
        poprun.main(["--host", "a,b", "x.py"])
