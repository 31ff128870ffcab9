"""`make test-core`: an environment in which no plugin can be imported or found."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

from native.core_alone import ROOT, install, without_plugins

CODE = """
import json, popgate
from importlib.metadata import entry_points
from importlib.util import find_spec
groups = sorted(g for g in entry_points().groups if g.startswith("popgate"))
found = [name for name in {names} if find_spec(name)]
print(json.dumps([groups, found, popgate.__file__]))
"""


def test_no_plugin_is_in_the_environment(tmp_path: Path) -> None:
    install(tmp_path / "core")
    names = sorted(path.name for path in ROOT.glob("plugins/*/src/*") if path.is_dir())
    assert "popgate_client" in names
    done = subprocess.run(
        [tmp_path / "core" / "bin" / "python", "-c", CODE.format(names=names)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    groups, found, place = json.loads(done.stdout)
    assert groups == []
    assert found == []
    assert Path(place).is_relative_to(tmp_path)


def test_the_project_keeps_its_commands() -> None:
    project = tomllib.loads(without_plugins((ROOT / "pyproject.toml").read_text()))
    assert "popgate" in project["project"]["scripts"]
    assert "entry-points" not in project["project"]
    assert project["tool"]["setuptools"]["packages"]["find"]["where"] == ["."]
