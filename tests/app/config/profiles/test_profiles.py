"""Profiles: defaults that give way, and models that are written once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.config.profiles import PROFILES, Profile
from app.settings import Settings


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER_NAME", "PORT", "PROFILE"):
        monkeypatch.delenv(f"POPGATE_{name}", raising=False)


def test_a_profile_sets_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().server_name == "popgate"
    assert Settings(profile="triton").server_name == "triton"
    assert Settings(profile="triton", server_name="mine").server_name == "mine"
    monkeypatch.setenv("POPGATE_PROFILE", "triton")
    monkeypatch.setenv("POPGATE_SERVER_NAME", "theirs")
    settings = Settings()
    assert settings.server_name == "theirs"
    assert settings.max_body_size == 64 << 20


def test_a_profile_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="triton"):
        Settings(profile="tritn")  # type: ignore[arg-type]


def test_models_are_written_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def build(folder: Path) -> None:
        made.append(folder)
        (folder / "m.onnx").write_bytes(b"")

    profile = Profile("p", {}, build, Path(__file__))
    folder = profile.repository(tmp_path)
    assert [p.name for p in folder.iterdir()] == ["m.onnx"]
    assert profile.repository(tmp_path) == folder
    assert len(made) == 1
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_nothing_is_left_of_what_fails(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_bytes(b"")
        raise OSError("disk full")

    profile = Profile("p", {}, build, Path(__file__))
    with pytest.raises(OSError, match="disk full"):
        profile.repository(tmp_path)
    assert list((tmp_path / "profiles").iterdir()) == []


@pytest.mark.parametrize("name", PROFILES)
def test_settings_of_profiles_are_settings(name: Any) -> None:
    profile = PROFILES[name]
    settings = Settings(profile=name)
    assert {k: getattr(settings, k) for k in profile.settings} == profile.settings
