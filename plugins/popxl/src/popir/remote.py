"""Remote memory: tables of rows, one for each replica.

A row is the last value stored there, or zeros. Rows belong to the buffer, so they last
from run to run and from session to session. Rows of variables restart with the
variable's data each time weights come from the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from popir.dtypes import Array, DType, Shape
from popir.errors import ValueOutOfRange


@dataclass(slots=True)
class _Row:
    array: Array
    is_hosts: bool = False
    """`array` is the host's copy of a variable, or a part of it."""
    in_place: bool = False
    """Stores go into `array` itself, which lies in a file; else `array` is replaced."""


@dataclass(eq=False, slots=True)
class RemoteBuffer:
    """A table of `entries` rows for each replica. Compared by identity."""

    number: int
    dtype: DType
    shape: Shape
    entries: int
    meta_shape: Shape = ()
    """The shape of the whole if rows are shards; empty otherwise."""
    _rows: dict[tuple[int, int], _Row] = field(default_factory=dict)

    def load(self, replica: int, offset: int) -> Array:
        """Return a row, which stays unchanged when others are stored."""
        self.check(offset)
        row = self._rows.get((replica, offset))
        if row is None:
            return np.zeros(self.shape, self.dtype.carrier)
        return np.array(row.array) if row.is_hosts else row.array

    def store(self, replica: int, offset: int, value: Array) -> None:
        """Make `value` a row. The caller does not change it afterwards."""
        self.check(offset)
        row = self._rows.get((replica, offset))
        if row is not None and row.in_place:
            row.array[...] = value
        else:
            self._rows[replica, offset] = _Row(value)

    def place(self, replica: int, offset: int, array: Array, in_place: bool) -> None:
        """Set a row to the host's value; in_place: stores go into `array`."""
        self.check(offset)
        self._rows[replica, offset] = _Row(np.asarray(array), True, in_place)

    def peek(self, replica: int, offset: int) -> Array:
        """Return a row without a copy, to be read immediately."""
        row = self._rows.get((replica, offset))
        return self.load(replica, offset) if row is None else row.array

    def own(self, replica: int, offset: int) -> None:
        """Give a row its own memory before its shared memory changes."""
        row = self._rows.get((replica, offset))
        if row is not None and row.is_hosts and not row.in_place:
            self._rows[replica, offset] = _Row(row.array.copy())

    def check(self, offset: int) -> None:
        """Raise ValueOutOfRange if there is no row at `offset`."""
        if not 0 <= offset < self.entries:
            raise ValueOutOfRange(
                f"remote buffer {self.number} has {self.entries} entries: there is no "
                f"row at offset {offset}"
            )
