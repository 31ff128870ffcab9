"""What is found in a repository folder, and what is not.

Covers: app/repository/source.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.repository.scan import scan_model, scan_names
from app.repository.source import is_model_name


def make(root: Path, *files: str) -> None:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def versions(root: Path, name: str) -> dict[int, list[str]]:
    scanned = scan_model(root, name)
    assert scanned is not None
    return {v.version: [p.name for p in v.files] for v in scanned.versions}


def problem(root: Path, name: str) -> str:
    scanned = scan_model(root, name)
    assert scanned is not None
    assert not scanned.versions
    return scanned.problem


def test_empty_folder(tmp_path: Path) -> None:
    assert scan_names(tmp_path) == []
    assert scan_model(tmp_path, "a") is None


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        scan_names(tmp_path / "none")


def test_every_layout(tmp_path: Path) -> None:
    make(tmp_path, "single.popef", "plain.onnx", "README.md", ".hidden.popef")
    make(tmp_path, "__pycache__/m.pyc")
    make(tmp_path, "many/1/a.popef", "many/1/b.popef", "many/10/m.popef")
    make(tmp_path, "many/2/m.onnx", "many/2/weights.bin", "many/notes/x.popef")
    assert scan_names(tmp_path) == ["many", "plain", "single"]
    assert versions(tmp_path, "single") == {1: ["single.popef"]}
    assert versions(tmp_path, "plain") == {1: ["plain.onnx"]}
    assert versions(tmp_path, "many") == {
        1: ["a.popef", "b.popef"],
        2: ["m.onnx"],
        10: ["m.popef"],
    }


def test_the_files_of_other_models_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "a.popef", "b.popef", "c/1/m.popef")
    looked: list[str] = []
    stat = Path.stat

    def watched(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        looked.append(path.name)
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", watched)
    assert versions(tmp_path, "a") == {1: ["a.popef"]}
    assert "a.popef" in looked
    assert not {"b.popef", "c"} & set(looked)


def test_onnx_is_told_apart(tmp_path: Path) -> None:
    make(tmp_path, "a.onnx", "b.popef")
    onnx, popef = scan_model(tmp_path, "a"), scan_model(tmp_path, "b")
    assert onnx is not None
    assert popef is not None
    assert onnx.versions[0].is_onnx
    assert not popef.versions[0].is_onnx


def test_popef_wins_over_onnx_in_a_version(tmp_path: Path) -> None:
    make(tmp_path, "m/1/model.onnx", "m/1/model.popef")
    assert versions(tmp_path, "m") == {1: ["model.popef"]}


def test_config_beside_a_single_file(tmp_path: Path) -> None:
    make(tmp_path, "m.popef")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.toml").write_text("instances = 3")
    scanned = scan_model(tmp_path, "m")
    assert scanned is not None
    assert scanned.config.instances == 3
    assert versions(tmp_path, "m") == {1: ["m.popef"]}


def test_config_mistake_is_the_models_problem(tmp_path: Path) -> None:
    make(tmp_path, "m/1/m.popef")
    (tmp_path / "m" / "config.toml").write_text("instance = 3")
    assert "unknown key 'instance'" in problem(tmp_path, "m")


def test_versions_are_numbers(tmp_path: Path) -> None:
    make(tmp_path, "m/0/a.popef", "m/01/a.popef", "m/-1/a.popef", "m/v1/a.popef")
    assert "neither a version folder nor a model" in problem(tmp_path, "m")


def test_a_folder_without_versions_is_one(tmp_path: Path) -> None:
    make(tmp_path, "m/model.onnx", "m/model.onnx.data", "p/a.popef", "p/b.popef")
    assert versions(tmp_path, "m") == {1: ["model.onnx"]}
    assert versions(tmp_path, "p") == {1: ["a.popef", "b.popef"]}
    make(tmp_path, "q/a.onnx", "q/b.onnx")
    assert (
        problem(tmp_path, "q")
        == "the folder contains several .onnx files: a.onnx, b.onnx; keep one"
    )


def test_a_version_with_nothing_in_it(tmp_path: Path) -> None:
    make(tmp_path, "m/1/m.popef", "m/2/readme.txt", "m/3/a.onnx", "m/3/b.onnx")
    scanned = scan_model(tmp_path, "m")
    assert scanned is not None
    problems = {v.version: v.problem for v in scanned.versions}
    assert problems[1] == ""
    assert "neither a .popef nor an .onnx" in problems[2]
    assert "several .onnx files: a.onnx, b.onnx" in problems[3]


def test_code_in_a_pipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    os.mkfifo(tmp_path / "m" / "1" / "model.py")
    scanned = scan_model(tmp_path, "m")
    assert scanned is not None
    (version,) = scanned.versions
    assert version.problem == "version 1: model.py is not a regular file"


def test_two_models_of_one_name(tmp_path: Path) -> None:
    make(tmp_path, "m.popef", "m/1/m.popef")
    assert "several models have this name" in problem(tmp_path, "m")
    make(tmp_path, "n.popef", "n.onnx")
    assert "n.onnx, n.popef" in problem(tmp_path, "n")


def test_version_policies(tmp_path: Path) -> None:
    make(tmp_path, "m/1/m.popef", "m/2/m.popef", "m/3/m.popef")
    config = tmp_path / "m" / "config.toml"
    for text, served in (
        ('"latest"', [3]),
        ('"all"', [1, 2, 3]),
        ("[1, 3]", [1, 3]),
        ("{ latest = 2 }", [2, 3]),
        ("{ latest = 9 }", [1, 2, 3]),
    ):
        config.write_text(f"versions = {text}")
        assert list(versions(tmp_path, "m")) == served
    config.write_text("versions = [9]")
    assert "the folder contains 1, 2, 3" in problem(tmp_path, "m")


def test_links_stay_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    root = tmp_path / "models"
    root.mkdir()
    make(outside, "secret.popef", "tree/1/m.popef", "config.toml")
    (root / "file.popef").symlink_to(outside / "secret.popef")
    (root / "folder").symlink_to(outside / "tree")
    make(root, "inner/1/ok.popef")
    (root / "inner" / "2").symlink_to(outside / "tree" / "1")
    (root / "inner" / "3").symlink_to(root / "inner" / "1")
    make(root, "conf/1/m.popef")
    (root / "conf" / "config.toml").symlink_to(outside / "config.toml")
    for name in ("file", "folder", "conf"):
        assert "a link to a place outside the model repository" in problem(root, name)
    scanned = scan_model(root, "inner")
    assert scanned is not None
    assert [bool(v.problem) for v in scanned.versions] == [False, True, False]


def test_the_repository_itself_may_be_a_link(tmp_path: Path) -> None:
    make(tmp_path / "real", "m.popef")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert versions(tmp_path / "link", "m") == {1: ["m.popef"]}


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../m",
        "a/b",
        "a\\b",
        ".hidden",
        "a b",
        "a:b",
        "ä",
        "a\n",
        "x" * 201,
    ],
)
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    make(tmp_path, "m.popef")
    assert not is_model_name(name)
    assert scan_model(tmp_path, name) is None


@pytest.mark.parametrize(
    "name", ["m", "0", "test_abs", "a.b-c+d", "nop_TYPE_FP32_-1,-1", "x" * 200]
)
def test_names(tmp_path: Path, name: str) -> None:
    assert is_model_name(name)
    make(tmp_path, f"{name}/1/model.onnx")
    assert scan_names(tmp_path) == [name]


def test_odd_files_are_skipped(tmp_path: Path) -> None:
    make(tmp_path, "not a name.popef", "ok.popef")
    assert scan_names(tmp_path) == ["ok"]


def test_stamps_change_with_the_files(tmp_path: Path) -> None:
    make(tmp_path, "m.popef", "n/1/m.onnx", "n/1/weights.bin", "n/2/m.onnx")

    def stamps(name: str) -> list[object]:
        scanned = scan_model(tmp_path, name)
        assert scanned is not None
        return [scanned.stamp, *(v.stamp for v in scanned.versions)]

    before = stamps("m")
    assert stamps("m") == before
    (tmp_path / "m.popef").write_bytes(b"longer")
    assert all(a != b for a, b in zip(stamps("m"), before, strict=True))
    before = stamps("n")
    make(tmp_path, "n/1/.hidden")
    assert stamps("n") == before
    (tmp_path / "n/1/weights.bin").write_bytes(b"longer")
    model, first, second = stamps("n")
    assert model != before[0]
    assert first != before[1]
    assert second == before[2]
    make(tmp_path, "n/config.toml")
    (tmp_path / "n/config.toml").write_text("")
    assert stamps("n")[0] != model
    assert stamps("n")[1:] == [first, second]


def test_a_bad_name_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "my model" / "1").mkdir(parents=True)
    for _ in range(2):
        assert scan_names(tmp_path) == []
    (record,) = caplog.records
    assert "ignoring 'my model'" in record.getMessage()
    assert "letters, digits and any of '_.,+-'" in record.getMessage()
