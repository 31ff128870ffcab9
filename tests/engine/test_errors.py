"""Errors that are kept, and raised as often as somebody asks."""

from __future__ import annotations

import pytest

from engine.errors import (
    DeviceFailed,
    EngineBug,
    EngineError,
    ExecutionFailed,
    InvalidInput,
    QueueFull,
)
from engine.faults import DeviceFault, FaultKind


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("what came"),
        QueueFull("full", 2.5),
        DeviceFailed("gone", DeviceFault(FaultKind.UNKNOWN, "why")),
        ExecutionFailed("no", callers_fault=True),
        EngineBug("not so"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_again_is_the_same_but_for_where_it_was_raised(
    error: EngineError,
) -> None:
    error.__cause__ = ValueError("first")
    with pytest.raises(type(error)) as caught:
        raise error.again()
    again = caught.value
    assert again is not error
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert again.__cause__ is error.__cause__
    assert error.__traceback__ is None
