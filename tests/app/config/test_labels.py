"""Labels: in the options or in a file beside them.

Covers: app/config/model_files.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config.config_keys import ModelConfigError
from app.config.model_options import MAX_LABEL_BYTES, read_labels, read_options


def test_one_a_line(tmp_path: Path) -> None:
    text = "\ufeffcat\r\ngrüner Hund \n\nlast"
    (tmp_path / "labels.txt").write_text(text, encoding="utf-8")
    assert read_labels(tmp_path, "labels.txt") == ("cat", "grüner Hund", "", "last")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none.txt", "cannot be read"),
        ("../labels.txt", "outside the model's folder"),
        ("/etc/passwd", "outside the model's folder"),
        ("link.txt", "outside the model's folder"),
        ("large.txt", "is larger than"),
        ("latin.txt", "it is not UTF-8"),
        (".", "cannot be read"),
    ],
)
def test_files_that_are_not_read(tmp_path: Path, name: str, text: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "labels.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "labels.txt")
    (folder / "large.txt").write_bytes(b"x" * (MAX_LABEL_BYTES + 1))
    (folder / "latin.txt").write_bytes(b"gr\xfcn")
    with pytest.raises(ValueError, match=text):
        read_labels(folder, name)


def test_options_name_files_or_labels(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('labels = {y = "classes.txt", z = ["a", "b"]}')
    with pytest.raises(
        ModelConfigError, match=r"config.toml: labels file 'classes.txt'"
    ):
        read_options("m", path.parent, None, path)
    (tmp_path / "classes.txt").write_text("c\nd\n")
    assert read_options("m", path.parent, None, path).config.labels == {
        "y": ("c", "d"),
        "z": ("a", "b"),
    }


@pytest.mark.parametrize("value", ["5", "{y = 5}", "{y = [1]}"])
def test_odd_values(tmp_path: Path, value: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"labels = {value}")
    with pytest.raises(ModelConfigError, match="labels must be a table of output name"):
        read_options("m", path.parent, None, path)
