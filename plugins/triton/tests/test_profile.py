"""The profile: settings and statuses that Triton's scripts expect."""

from __future__ import annotations

import pytest

from app.errors import (
    BodyTooLarge,
    InvalidShape,
    RequestError,
    UnknownModel,
    UnknownModelRun,
    row_of,
)
from app.settings import Settings
from engine.errors import QueueFull
from popgate_triton.profile import PROFILE, STATUSES
from popgate_triton.trace_routes import UnknownModelTraced


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


def test_its_settings_are_settings() -> None:
    settings = Settings(profile="triton")
    assert {k: getattr(settings, k) for k in PROFILE.settings} == PROFILE.settings


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (UnknownModelRun, 400),
        (UnknownModelTraced, 400),
        (InvalidShape, 500),
        (QueueFull, 503),
        (BodyTooLarge, 400),
        (UnknownModel, 404),
    ],
)
def test_statuses(kind: type[RequestError], status: int) -> None:
    error = kind("x")
    assert STATUSES.status(error, row_of(error).status) == status


def test_the_words_of_a_trace() -> None:
    assert str(UnknownModelTraced("x")) == "Request for unknown model : x"
