"""A program with packages called `app` and `engine` of its own.

Covers: popgate/__init__.py, popgate/__main__.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import popgate
from app.about import VERSION
from tests.app.served import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("app", "engine", "popef_io"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    return tmp_path


def run(project: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """In the project, with its folder before ours."""
    path = os.pathsep.join([".", str(ROOT)])
    pool = f"own-{os.getpid()}"
    return subprocess.run(
        list(map(str, command)),
        cwd=project,
        env={**os.environ, "PYTHONPATH": path, "POPGATE_POOL": pool},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_uses_its_own_packages(project: Path) -> None:
    model = ROOT / "examples" / "digits" / "digits.onnx"
    start = "from popgate.__main__ import main; main()"
    for command in ([sys.executable, "-m", "popgate"], [sys.executable, "-c", start]):
        done = run(project, *command, "--version")
        assert (done.stdout, done.stderr) == (f"popgate {VERSION}\n", "")
        done = run(project, *command, "compile", model, "-o", project / "m.popef")
        assert done.returncode == 0, done.stderr
        assert "m.popef" in done.stdout


def test_an_import_of_the_wrong_engine_says_so(project: Path) -> None:
    for before in ("", "import engine; "):
        code = f"{before}import popgate; popgate.__version__; popgate.ModelRunner"
        done = run(project, sys.executable, "-c", code)
        last = done.stderr.splitlines()[-1]
        assert last.startswith("ImportError: popgate needs its own package 'engine' (")
        assert f"{project}/engine/__init__.py is in front of it" in last


def test_an_app_of_the_program_stays_its_own(project: Path) -> None:
    for name in ("engine", "popef_io"):
        (project / name / "__init__.py").unlink()
        (project / name).rmdir()
    code = "import popgate; popgate.DeviceManager; import app; print(app.MINE)"
    done = run(project, sys.executable, "-c", code)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_importing_is_cheap() -> None:
    code = "import sys, popgate; print({'numpy', 'onnx', 'engine'} & set(sys.modules))"
    done = run(ROOT, sys.executable, "-c", code)
    assert done.stdout == "set()\n", done.stderr
    assert popgate.__version__ == VERSION
    assert dir(popgate) == popgate.__all__
    assert not hasattr(popgate, "nothing")
