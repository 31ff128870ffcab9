"""Checks of arguments: one of several names, and the right type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex, TypeVar

from engine import InvalidConfig
from popef.errors import WrongType, WrongValue
from popef.taking import Text, got, number, text

T = TypeVar("T")
UNLIMITED = "unlimited"


class WrongOption(InvalidConfig, ValueError):
    """The value of an option or argument is not allowed."""


def one_of(names: str, *given: Any) -> Any:
    """Return the only given value; raise WrongType with `names` for none or several."""
    found = [value for value in given if value is not None]
    if len(found) != 1:
        raise WrongType(f"expected one of {names}, got {len(found)}")
    return found[0]


def at_most_one_of(names: str, *given: Any) -> Any:
    """Return the given value, or None; raise WrongType for several."""
    return one_of(names, *given) if any(v is not None for v in given) else None


def checked_callback(name: str, callback: T) -> T:
    """Return `callback`; raise WrongType if it cannot be called.

    So the error is raised when a callback is passed, not when it is called.
    """
    if not callable(callback):
        raise WrongType(f"expected a {name} to call, {got(callback)}")
    return callback


def optional_callback(name: str, callback: T) -> T:
    """Return `callback`, which may be None; raise WrongType if it cannot be called."""
    return callback if callback is None else checked_callback(name, callback)


def named(name: str, take: Callable[[Any], T], value: object) -> T:
    """Return the result of `take` for `value`; an error begins with `name`."""
    try:
        return take(value)
    except (WrongType, WrongValue, WrongOption) as error:
        raise type(error)(f"{name}: {error}") from None


def unsigned(value: SupportsIndex) -> int:
    """Return `value` as a number; raise an error if it is negative."""
    taken = number(value)
    if taken < 0:
        raise WrongOption(f"expected a number of at least 0, got {taken}")
    return taken


def look_ahead(value: Text | SupportsIndex) -> str:
    """Return the look-ahead as a string: "unlimited" or a number."""
    taken = str(number(value)) if isinstance(value, SupportsIndex) else text(value)
    if taken != UNLIMITED and not (
        taken.isascii() and taken.isdigit() and len(taken) < 10
    ):
        raise WrongOption(f'expected "{UNLIMITED}" or a number, got {taken!r}')
    return taken
