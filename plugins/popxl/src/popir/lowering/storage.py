"""Storage while a graph is lowered: cells that hold a value, and views of them.

An in-place operator gives a cell a new value, which later readers see. A view computes
its value from its parents' on each read. On a write it asks its operator for the new
values of its parents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from popir.builder import Builder, Value
from popir.records import OpCall, Record


class Storage(Protocol):
    """Storage with a value that may change."""

    @property
    def version(self) -> int:
        """Return a number that grows with every change."""
        ...

    def get(self) -> Value:
        """Return the current value."""
        ...

    def set(self, value: Value) -> None:
        """Set the current value."""
        ...

    def cells(self) -> list[Cell]:
        """Return the cells under it."""
        ...


class Cell:
    """Storage that is not a view."""

    __slots__ = ("value", "version")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.version = 0

    def get(self) -> Value:
        return self.value

    def set(self, value: Value) -> None:
        self.value = value
        self.version += 1

    def cells(self) -> list[Cell]:
        return [self]


class AliasView:
    """The result of an alias operator: a view of its inputs' storage."""

    __slots__ = ("_at", "_b", "_call", "_parents", "_record", "_value")

    def __init__(
        self, b: Builder, record: Record, call: OpCall, parents: Sequence[Storage]
    ) -> None:
        self._b = b
        self._record = record
        self._call = call
        self._parents = parents
        self._at: tuple[int, object] = (-1, None)
        self._value: Value | None = None

    @property
    def version(self) -> int:
        return sum(parent.version for parent in self._parents)

    def get(self) -> Value:
        at = (self.version, self._b.region)
        if self._value is None or self._at != at:
            values = [parent.get() for parent in self._parents]
            assert self._record.lower is not None
            (self._value,) = self._record.lower(self._b, self._call, values)
            self._at = at
        return self._value

    def set(self, value: Value) -> None:
        values = [parent.get() for parent in self._parents]
        assert self._record.put is not None
        new = self._record.put(self._b, self._call, values, value)
        for parent, each in zip(self._parents, new, strict=True):
            parent.set(each)

    def cells(self) -> list[Cell]:
        return list(dict.fromkeys(c for p in self._parents for c in p.cells()))
