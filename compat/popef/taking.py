"""Taking a value from the caller, as a setter of C++ does."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def expected(value: object, kind: type[T]) -> T:
    """`value`, which is of this kind; TypeError otherwise."""
    if not isinstance(value, kind):
        what = f"expected {kind.__name__}"
        raise TypeError(f"{what}, got {type(value).__name__}: {value!r}")
    return value


def taken(value: object, kind: type[T]) -> T:
    """A copy of `value`, so that changing it afterwards changes nothing here."""
    return copy.deepcopy(expected(value, kind))


def all_taken(values: Iterable[object], kind: type[T]) -> list[T]:
    """The same for each of them."""
    return [taken(value, kind) for value in values]
