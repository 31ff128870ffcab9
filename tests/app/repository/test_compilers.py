"""ONNX files where no plugin compiles them: the error says what is missing.

Covers: app/repository/compilers.py, engine/compiler.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.repository.compilers import NoCompiler
from engine import InvalidModel
from tests.app.served import ServedGateway

#: Hides the compiler from a process, as if its plugin were not installed.
WITHOUT = """
import importlib.metadata as metadata
groups = "popgate.compilers", "popgate.engine_modules"
found = (p for one in metadata.distributions() for p in one.entry_points)
kept = metadata.EntryPoints(p for p in found if p.group not in groups)
metadata.entry_points = lambda **wanted: kept.select(**wanted)
"""
#: The process of a test has read the entry points before.
ANEW = """
import app.plugins
app.plugins._all_points = lambda: kept
app.plugins._points.cache_clear()
"""
WHY = "no installed plugin compiles ONNX models"


@pytest.mark.parametrize(
    "use",
    [
        lambda cache, path: cache.find(path),
        lambda cache, path: cache.popef_for(path),
        lambda cache, path: cache.defaults(path, ["x"]),
        lambda cache, path: NoCompiler().compile(path, path),
    ],
)
def test_each_use_is_refused(use: Callable[..., object], tmp_path: Path) -> None:
    cache = NoCompiler().cache(tmp_path)
    with pytest.raises(InvalidModel, match=f"m.onnx must be compiled, and {WHY}"):
        use(cache, tmp_path / "m.onnx")
    cache.close()


def test_a_served_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    with ServedGateway(tmp_path, first=WITHOUT + ANEW) as gateway:
        gateway.wait_line(WHY)
        state = gateway.client.get("/v1/models/m").json()
        assert "use a .popef file" in state["reason"]


def test_programs_are_told_what_is_missing(tmp_path: Path) -> None:
    program = f"{WITHOUT}\nfrom engine.compiler import compile_model"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ImportError: engine.compiler.compile_model needs a compiler" in found.stderr
