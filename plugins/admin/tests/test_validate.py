"""`popgate validate`, as a person and as a program use it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.app.served import run_popgate
from tests.engine import models


def test_a_good_folder(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    models.affine(root / "affine.popef")
    ended = run_popgate("validate", root, "--devices", "cpu:2")
    assert ended.returncode == 0, ended.stderr
    assert "affine" in ended.stdout
    assert "input FP32[-1,4]" in ended.stdout
    assert "→ output FP32[-1,4]" in ended.stdout
    assert "1 of 1 model would be served" in ended.stdout
    assert "nothing is wrong" in ended.stdout


def test_a_folder_with_mistakes(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    models.affine(root / "good.popef")
    models.affine(root / "bad.popef")
    (root / "bad").mkdir()
    (root / "bad" / "config.toml").write_text("instances = 'two'\n")
    ended = run_popgate("validate", root)
    assert ended.returncode == 1
    wanted = "wrong  bad/config.toml: instances must be a whole number, got 'two'"
    assert wanted in ended.stdout
    assert "1 of 2 models would be served" in ended.stdout
    ended = run_popgate("validate", root, "--json")
    assert ended.returncode == 1
    document = json.loads(ended.stdout)
    assert document["ok"] is False
    bad, good = document["models"]
    assert bad["problems"] == [wanted.removeprefix("wrong  ")]
    assert good["versions"][0]["inputs"] == [
        {"name": "input", "datatype": "FP32", "shape": [-1, 4]}
    ]
    assert good["versions"][0]["max_batch_size"] == 64
    assert document["memory"] == good["memory"] > 0


def test_what_cannot_be_looked_at(tmp_path: Path) -> None:
    ended = run_popgate("validate", tmp_path / "none")
    assert ended.returncode == 2
    assert "the folder" in ended.stderr
    model = models.weighted(tmp_path / "m.popef")
    ended = run_popgate("validate", model)
    assert (ended.returncode, f"{model} is a file;" in ended.stderr) == (2, True)
    model.unlink()
    ended = run_popgate("validate", tmp_path, "--devices", "tpu:1")
    assert ended.returncode == 2
    ended = run_popgate("validate", tmp_path, POPGATE_DEVICES="tpu:1")
    assert ended.returncode == 2
    assert "POPGATE_DEVICES: invalid devices 'tpu:1'" in ended.stderr
