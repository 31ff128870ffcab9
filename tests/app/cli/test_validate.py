"""`popgate validate`, as a person and as a program use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli.errors import CommandError
from app.cli.validate import validate
from app.repository.remote.remote_models import RemoteModels
from app.repository.remote.urls import RemoteUrl
from tests.app.repository.remote.web import serving
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
    assert "there is no folder" in ended.stderr
    ended = run_popgate("validate", tmp_path, "--devices", "tpu:1")
    assert ended.returncode == 2
    ended = run_popgate("validate", tmp_path, POPGATE_DEVICES="tpu:1")
    assert ended.returncode == 2
    assert "POPGATE_DEVICES: cannot understand devices 'tpu:1'" in ended.stderr


def test_a_model_that_is_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NETRC", "/nowhere")
    with serving() as web:
        web.put("/m.onnx", bytes(2048))
        place = f"digits={web.url}/m.onnx"
        validate(place, cache_dir=tmp_path)
        end = f"digits: 1 file, 2 KiB, would come from {web.url}/m.onnx"
        assert capsys.readouterr().out.splitlines() == [
            "would come       2 KiB  m.onnx",
            end,
        ]
        assert list(tmp_path.iterdir()) == []  # nothing was taken
        url = RemoteUrl.of(f"{web.url}/m.onnx")
        RemoteModels(tmp_path / "models").fetch("model digits", url)
        validate(place, cache_dir=tmp_path, json=True)
        document = json.loads(capsys.readouterr().out)
        assert document["name"] == "digits"
        assert document["files"] == [
            {"name": "m.onnx", "size": 2048, "checksums": {}, "in_cache": True}
        ]
        for wrong, text, code in (
            (f"{web.url}/none.onnx", "there is nothing at", 1),
            ("ftp://host/m.onnx", "ftp: is not known here", 2),
        ):
            with pytest.raises(CommandError, match=text) as raised:
                validate(wrong, cache_dir=tmp_path)
            assert raised.value.exit_code == code
