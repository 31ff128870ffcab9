"""`popgate dump` and `devices`: what they print.

Covers: plugins/admin/src/popgate_admin/devices.py.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

from app.cli import popef_dump
from tests.app.cli.calls import Call
from tests.engine import models

ROOT = Path(__file__).resolve().parents[3]


def test_dump(popgate: Call, tmp_path: Path) -> None:
    path = models.weighted(tmp_path / "m.popef")
    done = popgate("dump", path)
    assert (done.code, done.err) == (0, "")
    assert "POPLAR_EXECUTABLE" in done.out
    assert "weights" in done.out
    short = popgate("dump", "-m", path).out
    assert "POPLAR_EXECUTABLE" not in short
    assert len(popgate("dump", "--all", "--verify", path).out) > len(done.out)
    document = json.loads(popgate("dump", "--json", path).out)
    assert document["metadata"]
    assert len(document["blobs"]) == 3


def test_names_of_files_with_any_bytes_in_json(popgate: Call, tmp_path: Path) -> None:
    folder = tmp_path / "a\udcff ä"
    folder.mkdir()
    path = models.weighted(folder / "m.popef")
    done = popgate("dump", "--json", path)
    assert json.loads(done.out)["files"][0]["path"] == str(path)
    done = popgate("validate", "--json", folder)
    assert json.loads(done.out)["repository"] == str(folder)


def test_dump_of_what_is_no_container(popgate: Call, tmp_path: Path) -> None:
    path = tmp_path / "m.popef"
    assert popgate("dump", path).code == 1
    path.write_bytes(b"something else entirely")
    done = popgate("dump", path)
    assert done.code == 1
    assert done.err.startswith("popgate: error: ")
    assert "m.popef" in done.err


def test_devices(popgate: Call) -> None:
    done = popgate("devices", "--devices", "cpu:30-31")
    assert done.code == 0
    assert done.out.split()[:5] == ["device", "state", "process", "owner", "process"]
    listed = json.loads(popgate("devices", "--devices", "cpu:30-31", "--json").out)
    assert listed == [
        {"id": name, "state": "free", "pid": None, "owner": None}
        for name in ("cpu:30", "cpu:31")
    ]
    assert popgate("devices", "--devices", "what").code == 2


def test_popef_dump_is_the_same(
    popgate: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = models.weighted(tmp_path / "m.popef")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["popef_dump"] == "popgate.__main__:popef_dump"
    for options in ((), ("-m",), ("--all",)):
        monkeypatch.setattr(sys, "argv", ["popef_dump", *options, str(path)])
        with pytest.raises(SystemExit) as ended:
            popef_dump()
        assert not ended.value.code
        assert capsys.readouterr().out == popgate("dump", *options, path).out
    monkeypatch.setattr(sys, "argv", ["popef_dump", str(tmp_path / "missing.popef")])
    with pytest.raises(SystemExit) as ended:
        popef_dump()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("popef_dump: error: ")
