"""`popgate validate`, as a person and as a program use it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.app.cli.calls import Call
from tests.engine import models


def test_a_good_folder(popgate: Call, tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    models.affine(root / "affine.popef")
    ended = popgate("validate", root, "--devices", "cpu:2")
    assert ended.code == 0, ended.err
    assert "affine" in ended.out
    assert "input FP32[-1,4]" in ended.out
    assert "→ output FP32[-1,4]" in ended.out
    assert "1 of 1 models would be served" in ended.out
    assert "nothing is wrong" in ended.out


def test_a_folder_with_mistakes(popgate: Call, tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    models.affine(root / "good.popef")
    models.affine(root / "bad.popef")
    (root / "bad").mkdir()
    (root / "bad" / "config.toml").write_text("instances = 'two'\n")
    ended = popgate("validate", root)
    assert ended.code == 1
    wanted = "wrong  bad/config.toml: instances must be a whole number, got 'two'"
    assert wanted in ended.out
    assert "1 of 2 models would be served" in ended.out
    ended = popgate("validate", root, "--json")
    assert ended.code == 1
    document = json.loads(ended.out)
    assert document["ok"] is False
    bad, good = document["models"]
    assert bad["problems"] == [wanted.removeprefix("wrong  ")]
    assert good["versions"][0]["inputs"] == [
        {"name": "input", "datatype": "FP32", "shape": [-1, 4]}
    ]
    assert good["versions"][0]["max_batch_size"] == 64
    assert document["memory"] == good["memory"] > 0


def test_what_cannot_be_looked_at(popgate: Call, tmp_path: Path) -> None:
    ended = popgate("validate", tmp_path / "none")
    assert ended.code == 2
    assert "there is no folder" in ended.err
    ended = popgate("validate", tmp_path, "--devices", "tpu:1")
    assert ended.code == 2
