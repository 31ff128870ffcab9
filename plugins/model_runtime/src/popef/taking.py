"""Checks and copies of values from the caller, as a setter of C++ makes them.

An assignment of a wrong type raises `WrongType`. Strings may also be bytes: the
original accepts both.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from operator import index
from typing import NoReturn, SupportsIndex, TypeAlias, TypeVar

from popef.errors import WrongType, WrongValue

T = TypeVar("T")

Text: TypeAlias = str | bytes
"""Values accepted for a string of C++; bytes are UTF-8."""
Path: TypeAlias = Text | os.PathLike[str] | os.PathLike[bytes]
"""Values accepted for the path of a file."""


def expected(value: object, kind: type[T]) -> T:
    """Return `value`; raise WrongType unless it is of this kind."""
    if not isinstance(value, kind):
        raise WrongType(f"expected {kind.__name__}, {got(value)}")
    return value


def got(value: object) -> str:
    """Return the received value in words, for a message."""
    text = repr(value)
    return f"got {type(value).__name__}: {text if len(text) < 200 else text[:200]}"


def taken(value: object, kind: type[T]) -> T:
    """Return a copy of `value`, so that later changes of `value` have no effect."""
    return copy.deepcopy(expected(value, kind))


def all_taken(values: Iterable[object], kind: type[T]) -> list[T]:
    """Return copies of several values."""
    return copy.deepcopy(each(values, kind))


def each(values: Iterable[object], kind: type[T]) -> list[T]:
    """Return `values`; raise WrongType unless all are of this kind."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise WrongType(f"expected a list of {kind.__name__}, {got(values)}")
    return [expected(value, kind) for value in values]


def text(value: object, what: str = "a string") -> str:
    """Return a string, or bytes in UTF-8, as a string."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise WrongType(f"expected {what}, {got(value)}")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise WrongValue(f"expected {what} in UTF-8, got {value!r}: {error}") from None


def path_of(value: object) -> str:
    """Return `value` as the path of a file; bytes have the file system's encoding."""
    if not isinstance(value, str | bytes | os.PathLike):
        raise WrongType(f"expected the path of a file, {got(value)}")
    taken = os.fsdecode(value)
    if "\0" in taken:
        raise WrongValue(f"expected the path of a file, got a zero byte in {taken!r}")
    return taken


def number(value: SupportsIndex, what: str = "a whole number") -> int:
    """Return `value` as a Python integer."""
    try:
        return index(value)
    except TypeError:
        raise WrongType(f"expected {what}, {got(value)}") from None


def numbers(values: Iterable[SupportsIndex]) -> list[int]:
    """Return several numbers as Python integers."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise WrongType(f"expected a list of whole numbers, {got(values)}")
    return [number(value) for value in values]


def names_by_number(values: Mapping[int, Text]) -> dict[int, str]:
    """Return a copy of a mapping from numbers to strings."""
    if not isinstance(values, Mapping):
        raise WrongType(f"expected a mapping from numbers to strings, {got(values)}")
    return {number(key): text(value) for key, value in values.items()}


def truth(value: object) -> bool:
    """Return `value` as True or False; numbers and numpy's bool are accepted too."""
    if not hasattr(value, "__bool__"):
        raise WrongType(f"expected True or False, {got(value)}")
    return bool(value)


class NotPickled:
    """Base of classes whose objects cannot be pickled; the error says so."""

    __slots__ = ()
    _instead = "make one in each process"

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise WrongType(f"cannot pickle or copy {name} objects: {self._instead}")
