"""Why a version cannot be loaded: app/repository/load_errors.py."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable

import pytest

from app.repository.load_errors import LoadCutOff, LoadError, explained
from engine import DeviceLost, OutOfMemory


class Model:
    """Stands for what a load holds."""


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (LoadError("no file"), LoadError, "no file"),
        (ValueError("no such input"), LoadError, "no such input"),
        (OSError(errno.EIO, "bad disk"), LoadError, "cannot be read: .*bad disk"),
        (KeyError("x"), LoadError, "KeyError: 'x'; this is a bug"),
        (MemoryError(), LoadCutOff, "too little memory"),
        (OutOfMemory("the device is full"), LoadCutOff, "the device is full"),
        (OSError(errno.ENOMEM, "no memory"), LoadCutOff, "no memory"),
        (DeviceLost("it has died"), LoadCutOff, "it has died"),
    ],
)
def test_what_an_operator_reads(
    raised: Exception, kind: type[LoadError], text: str
) -> None:
    with pytest.raises(LoadError, match=text) as caught, explained("m/1"):
        raise raised
    assert caught.type is kind


@pytest.mark.parametrize("make", [LoadError, ValueError, OSError])
def test_nothing_of_a_failed_load_is_kept(make: Callable[[str], Exception]) -> None:
    """A server collects garbage rarely, so a cycle would keep a model in memory."""

    def load(model: Model) -> None:
        with explained("m/1"):
            raise make("no")

    def fail() -> weakref.ref[Model]:
        model = Model()
        try:
            load(model)
        except LoadError:
            return weakref.ref(model)
        raise AssertionError("it is no error")

    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()
