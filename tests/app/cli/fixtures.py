"""`popgate` as a fixture."""

from __future__ import annotations

import pytest

from tests.app.cli.calls import Call, caller


@pytest.fixture
def popgate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    monkeypatch.setenv("COLUMNS", "100")
    return caller(monkeypatch, capsys)
