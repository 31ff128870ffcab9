"""A node as the rules for rows see it: its attributes, and known facts about its
inputs.

A rule (`rules`, `shape_rules`, `ml_rules`) returns the place of rows in the
results of one operator. It raises Unproven if the place is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine.errors import counted
from popgate_row_proof.values import AbstractValue, RowCounts, Rows, Size, Unproven


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """A node with known facts about the values that it reads."""

    node: Any
    given: tuple[AbstractValue | None, ...]
    """None if an optional input is left out."""
    opset: int
    counts: RowCounts

    def input(self, index: int = 0) -> AbstractValue:
        value = self.given[index] if index < len(self.given) else None
        if value is None:
            raise Unproven(f"lacks its input {index}")
        return value

    def has(self, index: int) -> bool:
        return index < len(self.given) and self.given[index] is not None

    @property
    def values(self) -> tuple[AbstractValue, ...]:
        """Return all inputs that are not omitted."""
        return tuple(value for value in self.given if value is not None)

    def attribute(self, name: str) -> Any:
        return next((a for a in self.node.attribute if a.name == name), None)

    def number(self, name: str, default: int) -> int:
        found = self.attribute(name)
        return default if found is None else int(found.i)

    def axis(self, default: int, rank: int | None = None) -> int:
        """Return the attribute `axis`, counted from the front."""
        rank = len(self.input().shape) if rank is None else rank
        return from_front(self.number("axis", default), rank)

    def numbers(self, name: str, index: int) -> tuple[int, ...] | None:
        """Return integers that are an attribute in old operator sets and an input in
        new ones; None if they are left out.
        """
        found = self.attribute(name)
        if found is not None:
            return tuple(int(i) for i in found.ints)
        if not self.has(index):
            return None
        return self.constants(index)

    def constants(self, index: int) -> tuple[int, ...]:
        """Return the elements of an input, which must be known."""
        items = self.input(index).items
        whole = None if items is None else [i for i in items if isinstance(i, int)]
        if items is None or whole is None or len(whole) < len(items):
            raise Unproven(f"reads {self.node.input[index]!r}, which is unknown")
        return tuple(whole)

    def only(self, index: int = 0) -> AbstractValue:
        """Return an input. Raise Unproven if another input depends on rows."""
        for other, value in enumerate(self.given):
            if other != index and value is not None and value.axis is not None:
                raise Unproven(f"also reads rows as its input {other}")
        return self.input(index)

    def leading(self, rank: int = 0) -> AbstractValue:
        """Return the first input, of `rank` (0: any).

        If it has rows, they must lie along its first axis, one place for each row. No
        other input may have rows.
        """
        value = self.only()
        if value.axis is not None and value.shape[0] != _plain(value):
            raise Unproven("reads rows that do not lie along the first axis")
        if rank and len(value.shape) != rank:
            raise Unproven(
                f"reads {counted(len(value.shape), 'dimension')}, expected {rank}"
            )
        return value


Rule: TypeAlias = Callable[[OperatorCall], Iterable[AbstractValue]]


def _plain(value: AbstractValue) -> Size:
    rows = value.shape[value.axis or 0]
    return Rows(rows.group) if isinstance(rows, Rows) else rows


def from_front(axis: int, rank: int) -> int:
    front = axis + rank if axis < 0 else axis
    if not 0 <= front < max(rank, 1):
        raise Unproven(f"names axis {axis} of {counted(rank, 'dimension')}")
    return front


def across(value: AbstractValue, axes: Iterable[int]) -> None:
    """Refuse an operator that combines the values along `axes` if rows lie there."""
    if value.axis is not None and value.axis in axes:
        raise Unproven("combines values along the axis of rows")
