"""`make test` runs the tests while mypy runs, and fails if one of them does.

Covers: Makefile.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("style", "types", "tests", "code"),
    [(0, 0, 0, 0), (0, 1, 0, 2), (0, 0, 1, 2), (0, 0, 3, 2), (1, 0, 0, 2)],
)
def test_each_part_fails_the_whole(
    style: int, types: int, tests: int, code: int, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "Makefile").symlink_to(ROOT / "Makefile")
    tools = tmp_path / ".venv/bin"
    tools.mkdir(parents=True)
    # These stand for the tools. mypy ends once the tests have begun.
    fifo = tmp_path / "begun"
    for name, script in {
        "ruff": f"exit {style}",
        "mypy": f"read line < {fifo}\necho types are read\nexit {types}",
        "python": 'case "$*" in *collect-only*|-c*) exit 0;; '
        f"*--last-failed*) exit {tests};; esac\n"
        f"echo tests run\necho now > {fifo}\nexit {tests}",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    subprocess.run(["mkfifo", fifo], check=True)
    for stamp in (".python", ".installed", ".installed-dev"):
        (tools.parent / stamp).touch()
    done = subprocess.run(
        ["make", "-o", "Makefile", "test", "VENV=.venv"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stdout + done.stderr
    output = done.stdout.splitlines()
    if style:
        assert "tests run" not in output
        return
    assert output.index("tests run") < output.index("types are read")
    assert ("pytest ended" in done.stdout) == bool(types or tests)
