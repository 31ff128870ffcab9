"""Facts about the values of a graph, found without running it: the place of their rows.

A size is a number, a name (equal names are equal sizes), or `Rows`. A value with `Rows`
among its sizes holds a part for each row, which depends on that row alone. A value
without `Rows` depends on no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Rows:
    """A dimension along which rows lie, `each` places for each row, one
    after another.
    """

    group: int
    """The group whose number of rows this is (`RowCounts`)."""
    each: int = 1


Size: TypeAlias = int | str | Rows
Shape: TypeAlias = tuple[Size, ...]


class Unproven(Exception):
    """Raised if there is no proof that rows stay apart. The message is a clause."""


@dataclass(frozen=True, slots=True)
class AbstractValue:
    """Known facts about a value: its shape, and its elements if it holds sizes or axes.

    Elements that include `Rows` depend on the number of rows.
    """

    shape: Shape
    items: Shape | None = None

    @property
    def axis(self) -> int | None:
        """Return the axis of the rows; None if the value depends on none."""
        return next((i for i, d in enumerate(self.shape) if isinstance(d, Rows)), None)

    @property
    def counts_rows(self) -> bool:
        """Return whether the elements hold the number of rows."""
        return any(isinstance(item, Rows) for item in self.items or ())


class RowCounts:
    """Numbers of rows, and which of them must be equal for the graph to run at all."""

    def __init__(self, inputs: int) -> None:
        self._same = list(range(inputs))
        self._repeats: list[tuple[int, frozenset[int]]] = []

    def must_be_equal(self, groups: Iterable[int]) -> None:
        """Record that the graph fails if these numbers of rows differ."""
        first, *others = groups
        for other in others:
            self._same[self._find(other)] = self._find(first)

    def repeated(self, groups: Iterable[int]) -> int:
        """Return the group of the result if a single row of one group is repeated for
        the rows of another.
        """
        given = frozenset(map(self._find, groups))
        if len(given) == 1:
            return next(iter(given))
        self._same.append(len(self._same))
        self._repeats.append((self._same[-1], given))
        return self._same[-1]

    def settle(self) -> None:
        """Draw all conclusions. Call it after the last node."""
        changed = True
        while changed:
            changed = False
            for result, groups in self._repeats:
                met = {self._find(group) for group in groups}
                if len(met) == 1 and self._find(result) not in met:
                    self.must_be_equal((result, *met))
                    changed = True

    def are_equal(self, one: int, other: int) -> bool:
        return self._find(one) == self._find(other)

    def _find(self, group: int) -> int:
        while self._same[group] != group:
            group = self._same[group]
        return group


_NAMES: Iterator[int] = count()


def unknown() -> str:
    """Return an unknown size: a unique name."""
    return f"?{next(_NAMES)}"


_NOT_FOR_EACH_ROW = "combines rows with values that do not have one entry for each row"


def broadcast(shapes: Sequence[Shape], counts: RowCounts) -> Shape:
    """Return the shape of a value computed element by element from several values."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(_together(sizes, counts) for sizes in zip(*padded, strict=True))


def _together(sizes: tuple[Size, ...], counts: RowCounts) -> Size:
    rows = [size for size in sizes if isinstance(size, Rows)]
    others = {size for size in sizes if not isinstance(size, Rows) and size != 1}
    if rows:
        if others or len({size.each for size in rows}) > 1:
            raise Unproven(_NOT_FOR_EACH_ROW)
        return Rows(counts.repeated(size.group for size in rows), rows[0].each)
    if len(others) < 2:
        return next(iter(others), 1)
    return next((size for size in others if isinstance(size, int)), unknown())


def matched(sizes: Sequence[Size], counts: RowCounts) -> Size:
    """Return the size that all of these must have for the graph to run."""
    rows = [size for size in sizes if isinstance(size, Rows)]
    if not rows:
        return next((size for size in sizes if isinstance(size, int)), sizes[0])
    if len(rows) < len(sizes) or len({size.each for size in rows}) > 1:
        raise Unproven(_NOT_FOR_EACH_ROW)
    counts.must_be_equal(size.group for size in rows)
    return rows[0]


def reshaped(shape: Shape, target: Shape) -> Shape:
    """Return `shape` after a reshape to `target`, in which -1 stands for the rest."""
    axis = AbstractValue(shape).axis
    if axis is None:
        if any(isinstance(size, Rows) for size in target):
            raise Unproven("broadcasts rows to a value that has none")
        return _filled(target, _Product.of(shape))
    rows = shape[axis]
    assert isinstance(rows, Rows)
    before = _Product.of(shape[:axis])
    after = _Product.of((rows.each, *shape[axis + 1 :]))
    place = _row_place(target)
    size, head, tail = target[place], target[:place], target[place + 1 :]
    if isinstance(size, Rows):
        # Compare all sizes exactly. ONNX Runtime may treat a computed size as -1, and
        # then it does not fail if there are more elements.
        result = _filled(target, before.times(after))
        head, tail = result[:place], (size.each, *result[place + 1 :])
        if _Product.of(head) != before or _Product.of(tail) != after:
            raise Unproven("may put different rows together")
        return result
    each = after.over(_Product.of(tail))
    if _Product.of(head) != before or each is None or each.names:
        raise Unproven("may put different rows together")
    return (*head, Rows(rows.group, each.number), *tail)


def _row_place(target: Shape) -> int:
    """Return the axis of the rows after a reshape to `target`."""
    named = [i for i, size in enumerate(target) if isinstance(size, Rows)]
    places = named or [i for i, size in enumerate(target) if size == -1]
    if len(places) != 1:
        raise Unproven("returns a shape without exactly one axis for rows")
    return places[0]


def _filled(target: Shape, whole: _Product) -> Shape:
    """Return `target` with the value of -1 for `whole` elements (of each row)."""
    each = [size.each if isinstance(size, Rows) else size for size in target]
    left = whole.over(_Product.of(size for size in each if size != -1))
    size = unknown() if left is None else left.size()
    return tuple(size if given == -1 else given for given in target)


@dataclass(frozen=True, slots=True)
class _Product:
    """Product of sizes: a number times names."""

    number: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, sizes: Iterable[Size]) -> _Product:
        given = tuple(sizes)
        return cls(
            prod(size for size in given if isinstance(size, int)),
            tuple(sorted(size for size in given if isinstance(size, str))),
        )

    def size(self) -> Size:
        if not self.names:
            return self.number
        return self.names[0] if self.number == len(self.names) == 1 else unknown()

    def times(self, other: _Product) -> _Product:
        names = tuple(sorted((*self.names, *other.names)))
        return _Product(self.number * other.number, names)

    def over(self, other: _Product) -> _Product | None:
        """Divide by another product. Return None if the remainder may not be zero."""
        names = list(self.names)
        for name in other.names:
            if name not in names:
                return None
            names.remove(name)
        if other.number < 1 or self.number % other.number:
            return None
        return _Product(self.number // other.number, tuple(names))
