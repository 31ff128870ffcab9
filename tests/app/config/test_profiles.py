"""Profiles: defaults that give way, and models that are written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config.profiles import Profile
from app.errors import ErrorStatuses
from app.settings import Settings


def test_a_profile_that_there_is_not() -> None:
    for name in ("profile", "error_statuses"):
        with pytest.raises(ValueError, match="there is no profile 'tritn'; installed"):
            Settings.model_validate({name: "tritn"})


def test_models_are_written_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def build(folder: Path) -> None:
        made.append(folder)
        (folder / "m.onnx").write_bytes(b"")

    profile = Profile("p", {}, build, Path(__file__), ErrorStatuses())
    folder = profile.repository(tmp_path)
    assert [p.name for p in folder.iterdir()] == ["m.onnx"]
    assert profile.repository(tmp_path) == folder
    assert len(made) == 1
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_nothing_is_left_of_what_fails(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_bytes(b"")
        raise OSError("disk full")

    profile = Profile("p", {}, build, Path(__file__), ErrorStatuses())
    with pytest.raises(OSError, match="disk full"):
        profile.repository(tmp_path)
    assert list((tmp_path / "profiles").iterdir()) == []
