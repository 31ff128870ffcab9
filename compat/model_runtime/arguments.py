"""Arguments that the original takes under several names, one for each overload."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def one_of(names: str, *given: Any) -> Any:
    """The one that is given; TypeError, with `names`, unless it is one."""
    found = [value for value in given if value is not None]
    if len(found) != 1:
        raise TypeError(f"expected one of {names}, got {len(found)}")
    return found[0]


def at_most_one_of(names: str, *given: Any) -> Any:
    """The same, and None where none is given."""
    return one_of(names, *given) if any(v is not None for v in given) else None


def checked_callback(name: str, callback: T) -> T:
    """`callback`, which can be called; TypeError otherwise, when it is given and not
    when it is wanted."""
    if not callable(callback):
        raise TypeError(f"expected a {name} to call, got {callback!r}")
    return callback
