"""Errors as messages between processes: each keeps its kind and its text.

Covers: engine/transport/control.py, engine/transport/device_messages.py.
"""

from __future__ import annotations

import pytest

from engine import EngineBug, EngineError, ExecutionFailed, errors
from engine.transport.error_report import ErrorReport
from engine.transport.messages import MAX_MESSAGE, encode


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, EngineError)
    ],
)
def test_every_error_survives_the_journey(name: str) -> None:
    error = getattr(errors, name)("what happened")
    back = ErrorReport.of(error).to_error()
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_foreign_errors_become_bugs() -> None:
    back = ErrorReport.of(KeyError("k")).to_error()
    assert isinstance(back, EngineBug)
    assert "KeyError" in str(back)
    assert isinstance(ErrorReport("os", "m").to_error(), EngineBug)


@pytest.mark.parametrize("text", ["\U0001f600" * MAX_MESSAGE, "\ud800" * MAX_MESSAGE])
@pytest.mark.parametrize("kind", [ExecutionFailed, KeyError])
def test_a_report_fits_into_a_message(kind: type[Exception], text: str) -> None:
    assert len(encode(ErrorReport.of(kind(text)))) < MAX_MESSAGE
