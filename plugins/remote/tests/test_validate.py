"""`popgate validate` of remote models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from app.cli.errors import CommandError
from plugins.remote.tests.web import serving
from popgate_admin.validate import validate
from popgate_remote.cached_models import CachedModels
from popgate_remote.urls import ModelUrl
from tests.engine import models


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
        url = ModelUrl.of(f"{web.url}/m.onnx")
        CachedModels(tmp_path / "models").fetch("model digits", url)
        validate(place, cache_dir=tmp_path, json=True)
        document = json.loads(capsys.readouterr().out)
        assert document["name"] == "digits"
        assert document["files"] == [
            {"name": "m.onnx", "size": 2048, "checksums": {}, "in_cache": True}
        ]
        for wrong, text, code in (
            (f"{web.url}/none.onnx", "does not exist", 1),
            ("ftp://host/m.onnx", "ftp: is not supported", 2),
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
        CachedModels(tmp_path / "c" / "models").fetch(
            "model m", ModelUrl.of(f"{web.url}/a.popef")
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
        ('source = "ftp://h/m.onnx"', "ftp: is not supported"),
    ):
        config.write_text(text)
        with pytest.raises(typer.Exit):
            validate(str(root), cache_dir=tmp_path / "c")
        out = capsys.readouterr().out
        assert "wrong  m/config.toml: source: " in out
        assert why in out
