"""`popgate validate` of models in Python."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from popgate_admin.preview import preview_repository
from popgate_onnx.compile_cache import OnnxCompileCache
from tests.app.repository.test_python_models import SCORE, write
from tests.app.served import NOTHING_TAKEN, add, run_popgate


def test_code_is_not_run_unless_that_is_allowed(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    ran = tmp_path / "ran"
    write(root, "score", f"open({str(ran)!r}, 'w')\n" + textwrap.dedent(SCORE))
    add(root, "onnx")
    found = run_popgate("validate", root, "--cache-dir", tmp_path / "cache", "--json")
    assert found.returncode == 1
    _, model = json.loads(found.stdout)["models"]
    assert "--allow-python" in model["problems"][0]
    assert model["versions"][0]["is_code"] is True
    assert not ran.exists()


def test_validate_shows_what_is_code(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    write(root, "score", config="[warmup]\nenabled = false\n")
    found = preview_repository(
        root, OnnxCompileCache(tmp_path / "c"), NOTHING_TAKEN, allow_python=True
    )
    (model,) = found.models
    assert model.problems == ()
    assert model.notes == (
        "score/1: model.py is code that runs with the server's rights",
    )
    spec = model.versions[0].spec
    assert spec is not None
    assert [tensor.name for tensor in spec.outputs] == ["score", "by"]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            'requirements = ["a b"]',
            'must be names of packages with versions, as in ["numpy"',
        ),
        ("environment = {A = 1}", "a table of variable names and strings"),
        ("devices = [0]", "a Python model runs in processes of its own"),
        ('python = "/none"', "No such file or directory: '/none'"),
        ('requirements = ["none-such"]', "none-such is not installed"),
        ("[ragged]", "a Python model pads its own rows"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, config: str, problem: str) -> None:
    root = tmp_path / "models"
    root.mkdir()
    write(root, "score", config=f"{config}\n[warmup]\nenabled = false\n")
    found = preview_repository(
        root, OnnxCompileCache(tmp_path / "c"), NOTHING_TAKEN, allow_python=True
    )
    assert problem in str(found.all_problems)


def test_options_are_for_python_alone(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    add(root, "onnx", config='python = "/usr/bin/python3"\n')
    found = preview_repository(root, OnnxCompileCache(tmp_path / "c"), NOTHING_TAKEN)
    assert "python is for Python models, and there is no model.py" in str(
        found.all_problems
    )
