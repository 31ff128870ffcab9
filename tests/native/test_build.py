"""Where the hot path cannot be compiled, PopGate is served as plain Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree whose only module on the list cannot be translated."""
    shutil.copytree(ROOT / "native", tmp_path / "native")
    for name in ("setup.py", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\n'
        '[tool.popgate]\ncompiled = ["thing.py"]\n[tool.setuptools]\npackages = []\n'
    )
    (tmp_path / "thing.py").write_text("number: int = 'none'\n")
    return tmp_path


def build(
    tree: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "native.build", *arguments],
        cwd=tree,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("arguments", "code"), [(["--if-possible"], 0), ([], 1)])
def test_no_compiler(tree: Path, arguments: list[str], code: int) -> None:
    done = build(tree, *arguments, PATH=str(tree))
    assert done.returncode == code
    assert "no C compiler; PopGate runs as plain Python" in done.stderr


@pytest.mark.parametrize(("arguments", "code"), [(["--if-possible"], 0), ([], 1)])
def test_what_cannot_be_compiled(tree: Path, arguments: list[str], code: int) -> None:
    done = build(tree, *arguments)
    assert done.returncode == code
    if "not compiled" not in done.stderr:  # there is a compiler
        assert "compiling the hot path" in done.stdout
        (line,) = done.stderr.splitlines()
        assert line.startswith("compiling failed, build/compile.log says why; ")
        assert line.endswith("PopGate runs as plain Python")
        said = (tree / "build" / "compile.log").read_text()
        assert "Incompatible types in assignment" in said  # mypy's words
    assert not (tree / "build" / "compiled").exists()
