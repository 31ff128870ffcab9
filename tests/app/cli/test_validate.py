"""`popgate validate`, as a person and as a program use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

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


def test_a_folder_with_models_that_are_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NETRC", "/nowhere")
    root = tmp_path / "models"
    (root / "m").mkdir(parents=True)
    (root / "both").mkdir()
    (root / "both" / "config.toml").write_text('[[ensemble.step]]\nmodel = "m"\n')
    with serving() as web:
        body = models.affine(tmp_path / "made.popef").read_bytes()
        web.put("/a.popef", body)
        config = root / "m" / "config.toml"
        config.write_text(f'source = "{web.url}/a.popef"\nmax_batch_size = 8\n')
        validate(str(root), cache_dir=tmp_path / "c", json=True)
        document = json.loads(capsys.readouterr().out)
        assert document["ok"]
        both, shown = document["models"]
        assert shown["to_come"]
        (note,) = shown["notes"]
        assert note.startswith(f"m/config.toml: {web.url}/a.popef: 1 file, ")
        assert "'m' is not downloaded yet" in both["notes"][0]
        assert not (tmp_path / "c").exists()
        RemoteModels(tmp_path / "c" / "models").fetch(
            "model m", RemoteUrl.of(f"{web.url}/a.popef")
        )
        validate(str(root), cache_dir=tmp_path / "c", json=True)
        both, shown = json.loads(capsys.readouterr().out)["models"]
        assert shown["versions"][0]["max_batch_size"] == 8
        assert shown["notes"] == [
            f"m/config.toml: {web.url}/a.popef: all files are in the cache"
        ]
        assert both["versions"][0]["inputs"]
    for text, why in (
        (f'source = "{web.url}/b.popef"', "Connection refused"),
        ('source = "ftp://h/m.onnx"', "ftp: is not known here"),
    ):
        config.write_text(text)
        with pytest.raises(typer.Exit):
            validate(str(root), cache_dir=tmp_path / "c")
        out = capsys.readouterr().out
        assert "wrong  m/config.toml: source: " in out
        assert why in out
