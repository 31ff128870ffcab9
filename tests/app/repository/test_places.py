"""Models that are named one by one, beside those of a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.repository.places import ModelPlaces, is_one_model
from engine import InvalidConfig
from tests.app.repository.test_scan import make


def files(places: ModelPlaces, name: str) -> dict[int, list[str]]:
    scanned = places.scan(name)
    assert scanned is not None
    assert scanned.problem == ""
    return {v.version: [p.name for p in v.files] for v in scanned.versions}


def test_files_and_folders_are_models(tmp_path: Path) -> None:
    make(
        tmp_path, "a.onnx", "out/v7.popef", "b/1/x.onnx", "b/2/y.popef", "c/model.onnx"
    )
    named = (str(tmp_path / "a.onnx"), f"digits={tmp_path}/out/v7.popef")
    places = ModelPlaces.of(None, (*named, f"{tmp_path}/b/", f"{tmp_path}/c"))
    assert places.names() == ["a", "b", "c", "digits"]
    assert files(places, "a") == {1: ["a.onnx"]}
    assert files(places, "digits") == {1: ["v7.popef"]}
    assert files(places, "b") == {1: ["x.onnx"], 2: ["y.popef"]}
    assert files(places, "c") == {1: ["model.onnx"]}
    assert places.scan("v7") is None
    assert set(places.scan_all()) == {"a", "b", "c", "digits"}


def test_beside_a_folder_the_named_one_wins(tmp_path: Path) -> None:
    make(tmp_path, "models/a.popef", "models/b.popef", "new.popef")
    places = ModelPlaces.of(tmp_path / "models", [f"a={tmp_path}/new.popef"])
    assert places.names() == ["a", "b"]
    assert files(places, "a") == {1: ["new.popef"]}
    assert files(places, "b") == {1: ["b.popef"]}


def test_a_file_that_goes_and_a_link_that_leads_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "one.popef", "elsewhere/two.popef")
    link = tmp_path / "link.popef"
    link.symlink_to("one.popef")
    monkeypatch.chdir(tmp_path)
    places = ModelPlaces.of(None, ["link.popef"])
    before = places.scan("link")
    assert files(places, "link") == {1: ["one.popef"]}
    os.unlink(link)
    assert places.scan("link") is None
    link.symlink_to("elsewhere/two.popef")
    after = places.scan("link")
    assert files(places, "link") == {1: ["two.popef"]}
    assert before is not None
    assert after is not None
    assert before.stamp != after.stamp


@pytest.mark.parametrize(
    ("models", "text"),
    [
        (["gone.onnx"], "the file or folder gone.onnx"),
        (["x=gone.onnx"], "the file or folder gone.onnx"),
        (
            ["net.pt"],
            "popgate pack torch net.pt -o models/net` writes a model.py around",
        ),
        (["m.txt"], "m.txt is not a model: expected .onnx, .popef or .py, or a folder"),
        (["forest.joblib"], "docs/how-to/bring-a-model.md"),
        (["x.safetensors"], "holds weights without a program; export the model"),
        (["hf"], "optimum-cli export onnx --model"),
        (
            ["my net.onnx"],
            "'my net' is not a valid model name .*as in --model NAME=my net.onnx",
        ),
        (["a.onnx", "b/a.onnx"], "two models have the name 'a': a.onnx and b/a.onnx; "),
    ],
)
def test_what_is_no_model_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: list[str], text: str
) -> None:
    make(tmp_path, "a.onnx", "b/a.onnx", "net.pt", "my net.onnx", "m.txt")
    make(tmp_path, "forest.joblib", "x.safetensors", "hf/config.json", "hf/m.bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfig, match=text):
        ModelPlaces.of(None, models)


def test_a_folder_of_one_model_shows_itself(tmp_path: Path) -> None:
    make(tmp_path, "a/1/m.onnx", "b/config.toml", "many/m.onnx", "deep/a/1/m.onnx")
    assert is_one_model(tmp_path / "a")
    assert is_one_model(tmp_path / "b")
    assert not is_one_model(tmp_path / "many")
    assert not is_one_model(tmp_path / "deep")
