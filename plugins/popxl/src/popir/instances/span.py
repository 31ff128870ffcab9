"""Instances of one machine that exchange values in shared memory.

Each instance has an arena for a span: a slot for a piece of each of its replicas'
values, and a slot for a piece of each total, all twice. Large values go piece by piece,
alternating between the two halves, so the instances meet once for each piece. At a
meeting the values of one piece are ready, and the totals of the piece before. An
instance sums its slice of a piece from all slots, in the order of the replicas, so sums
have the same bits in any layout.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from popir.collectives import reduced
from popir.dtypes import AnyDtype, Array
from popir.instances.shared_memory import InstanceMemory

#: Bytes of a piece.
PIECE = 1 << 22
#: For values of fewer bytes, each instance computes the whole sum itself.
SMALL = 1 << 13
#: Bytes of large totals that a span keeps to use again. New memory costs as much as a
#: pass over it.
KEPT = 1 << 28
_LARGE = 1 << 20
#: Reference count of an array that only a list holds, while the list is searched.
_UNUSED = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of all values that are exchanged at once."""

    start: int
    stop: int
    half: int
    """Of the arenas."""

    @property
    def size(self) -> int:
        return self.stop - self.start


class SharedSpan:
    """The instances `members` of this machine, numbered on it.

    names: their numbers in the program. offset: of this instance's arena. slots: for
    each replica the instance in whose arena it is, and its slot there. capacity: slots
    of each kind in an arena.
    """

    def __init__(
        self,
        memory: InstanceMemory,
        members: Sequence[int],
        names: Sequence[int],
        offset: int,
        slots: Mapping[int, tuple[int, int]],
        capacity: int,
    ) -> None:
        self._memory = memory
        self._members = members
        self._names = names
        self._others = [m for m in members if m != memory.index]
        self._slots = slots
        self._capacity = capacity
        own = memory.view(memory.index, offset, arena_size(capacity))
        self._arenas = {memory.index: own}
        self._kept: list[Array] = []

    def barrier(self) -> None:
        """Wait until all instances of the span are here."""
        self._meet()

    def agree(self, note: bytes) -> dict[int, bytes]:
        """Return the message of each instance of the span, after all have
        sent theirs.
        """
        self._memory.write_note(note)
        self._meet()
        pairs = zip(self._names, self._members, strict=True)
        return {name: self._memory.note(member) for name, member in pairs}

    def map_arenas(self, offsets: Mapping[int, int]) -> None:
        """Map the arenas of the others at the offsets that they announced."""
        for name, member in zip(self._names, self._members, strict=True):
            if member not in self._arenas:
                size = arena_size(self._capacity)
                self._arenas[member] = self._memory.view(member, offsets[name], size)

    def all_gather(
        self, given: Mapping[int, Array], members: Sequence[int], example: Array
    ) -> dict[int, Array]:
        """Return the values of all replicas `members`, which are like `example`."""
        found = {
            replica: given[replica] if replica in given else np.empty_like(example)
            for replica in members
        }
        flat = {replica: value.reshape(-1) for replica, value in found.items()}
        for piece in _pieces(example):
            for replica in given:
                slot = self._slot(replica, example.dtype, piece)
                slot[: piece.size] = flat[replica][piece.start : piece.stop]
            self._spread(members, example.dtype, piece)
            for replica in members:
                if replica not in given:
                    slot = self._slot(replica, example.dtype, piece)
                    flat[replica][piece.start : piece.stop] = slot[: piece.size]
        return found

    def all_reduce(
        self, op: str, given: Mapping[int, Array], groups: Sequence[Sequence[int]]
    ) -> list[Array]:
        """Return for each group the values of its members, reduced."""
        example = next(iter(given.values()))
        dtype = example.dtype
        members = [replica for group in groups for replica in group]
        if example.nbytes <= SMALL:
            found = self.all_gather(given, members, example)
            return [reduced(op, [found[r] for r in group]) for group in groups]
        totals = [self._empty_like(example) for _ in groups]
        flat = [total.reshape(-1) for total in totals]
        own = {replica: value.reshape(-1) for replica, value in given.items()}
        before: Piece | None = None
        for piece in (*_pieces(example), None):
            if piece is not None:
                self._fill(own, dtype, piece)
            self._pass(members, len(groups), dtype, piece, before)
            if before is not None:
                self._take(flat, dtype, before)
            if piece is not None:
                self._sum(op, own, groups, flat, dtype, piece)
            before = piece
        return totals

    def _fill(self, own: Mapping[int, Array], dtype: AnyDtype, piece: Piece) -> None:
        """Write the parts of this instance's values that the others sum."""
        mine, _ = self._cut(piece.size)
        for replica, value in own.items():
            slot = self._slot(replica, dtype, piece)
            part = value[piece.start : piece.stop]
            slot[: mine.start] = part[: mine.start]
            slot[mine.stop : piece.size] = part[mine.stop :]

    def _sum(
        self,
        op: str,
        own: Mapping[int, Array],
        groups: Sequence[Sequence[int]],
        totals: Sequence[Array],
        dtype: AnyDtype,
        piece: Piece,
    ) -> None:
        """Sum this instance's slice of a piece, for itself and for the others."""
        mine, _ = self._cut(piece.size)
        for number, group in enumerate(groups):
            parts = [
                own[replica][piece.start : piece.stop][mine]
                if replica in own
                else self._slot(replica, dtype, piece)[mine]
                for replica in group
            ]
            total = totals[number][piece.start : piece.stop][mine]
            reduced(op, parts, total)
            self._total(self._memory.index, number, dtype, piece)[mine] = total

    def _take(self, totals: Sequence[Array], dtype: AnyDtype, piece: Piece) -> None:
        """Read the slices that others summed."""
        _, others = self._cut(piece.size)
        for number, total in enumerate(totals):
            into = total[piece.start : piece.stop]
            for member, place in others:
                into[place] = self._total(member, number, dtype, piece)[place]

    def _empty_like(self, example: Array) -> Array:
        """Return an array for a total, perhaps one that is no longer referred to."""
        if example.nbytes < _LARGE:
            return np.empty(example.shape, example.dtype)
        for array in self._kept:
            is_alike = (array.shape, array.dtype) == (example.shape, example.dtype)
            if is_alike and sys.getrefcount(array) == _UNUSED:
                return array
        self._kept.append(np.empty(example.shape, example.dtype))
        made = self._kept[-1]
        while sum(array.nbytes for array in self._kept) > KEPT:
            del self._kept[0]
        return made

    def _meet(self) -> None:
        self._memory.meet(self._others)

    # Methods that a span of several machines overrides.

    def _cut(self, size: int) -> tuple[slice, list[tuple[int, slice]]]:
        """Return the slice that this instance sums, and the others', with the arenas
        that receive their totals.
        """
        return self._cut_here(slice(0, size))

    def _cut_here(self, whole: slice) -> tuple[slice, list[tuple[int, slice]]]:
        cuts = slices(whole, len(self._members))
        parts = dict(zip(self._members, cuts, strict=True))
        return parts.pop(self._memory.index), list(parts.items())

    def _spread(self, replicas: Sequence[int], dtype: AnyDtype, piece: Piece) -> None:
        """Bring the whole slots of `replicas` to all."""
        self._meet()

    def _pass(
        self,
        replicas: Sequence[int],
        groups: int,
        dtype: AnyDtype,
        values: Piece | None,
        totals: Piece | None,
    ) -> None:
        """Bring `values`, slots of `replicas`, to the instances that sum them, each its
        slice. Bring the totals of an earlier piece to all instances.
        """
        self._meet()

    def _slot(self, replica: int, dtype: AnyDtype, piece: Piece) -> Array:
        member, number = self._slots[replica]
        return self._part(member, number, dtype, piece)

    def _total(self, member: int, group: int, dtype: AnyDtype, piece: Piece) -> Array:
        return self._part(member, self._capacity + group, dtype, piece)

    def _part(self, member: int, number: int, dtype: AnyDtype, piece: Piece) -> Array:
        at = 2 * self._capacity * piece.half + number
        return self._arenas[member][at * PIECE : (at + 1) * PIECE].view(dtype)


def arena_size(capacity: int) -> int:
    """Return the bytes of an arena: two halves of pieces of values and of totals."""
    return 4 * capacity * PIECE


def slices(whole: slice, count: int) -> list[slice]:
    """Return `whole` in so many parts, in their order."""
    size = whole.stop - whole.start
    ends = [whole.start + size * n // count for n in range(count + 1)]
    return [slice(ends[n], ends[n + 1]) for n in range(count)]


def _pieces(value: Array) -> list[Piece]:
    """Return the number of elements in a piece; one piece if there are none."""
    step = PIECE // value.itemsize
    starts = range(0, value.size, step) or range(1)
    return [
        Piece(start, min(start + step, value.size), number % 2)
        for number, start in enumerate(starts)
    ]
