"""Instances of one machine that exchange values together, in shared memory.

Each instance has an arena for a span: a slot for a piece of each of its replicas'
values, then a slot for a piece of each total. Large values go piece by piece. An
instance sums its slice of a piece from all slots, in the order of the replicas, so sums
have the same bits in any layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from popir.collectives import reduced
from popir.dtypes import AnyDtype, Array
from popir.instances.shared_memory import SharedMemory

#: Bytes of a piece.
PIECE = 1 << 22
#: Each instance sums values of fewer bytes whole.
SMALL = 1 << 13


class SharedSpan:
    """The instances `members` of this machine, numbered on it.

    names: their numbers in the program. offset: of this instance's arena. slots: for
    each replica the instance in whose arena it is, and its slot there. capacity: slots
    of each kind in an arena.
    """

    def __init__(
        self,
        memory: SharedMemory,
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

    def barrier(self) -> None:
        """Wait until all instances of the span are here."""
        self._meet()

    def agree(self, note: bytes) -> dict[int, bytes]:
        """Return what each instance of the span says, after all have said it."""
        self._memory.write_note(note)
        self._meet()
        pairs = zip(self._names, self._members, strict=True)
        return {name: self._memory.note(member) for name, member in pairs}

    def map_arenas(self, offsets: Mapping[int, int]) -> None:
        """Map the arenas of the others, which they said the offsets of."""
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
        for start, stop in _pieces(example):
            if start:
                self._meet()
            for replica in given:
                slot = self._slot(replica, example.dtype)
                slot[: stop - start] = flat[replica][start:stop]
            self._spread(members, example.dtype, [slice(0, stop - start)])
            for replica in members:
                if replica not in given:
                    slot = self._slot(replica, example.dtype)
                    flat[replica][start:stop] = slot[: stop - start]
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
        totals = [np.empty(example.shape, dtype) for _ in groups]
        flat = [total.reshape(-1) for total in totals]
        own = {replica: value.reshape(-1) for replica, value in given.items()}
        for start, stop in _pieces(example):
            machines = self._machines(stop - start)
            mine, others = self._cut(stop - start)
            for replica, value in own.items():
                slot, part = self._slot(replica, dtype), value[start:stop]
                slot[: mine.start] = part[: mine.start]
                slot[mine.stop : len(part)] = part[mine.stop :]
            self._spread(members, dtype, machines)
            for number, group in enumerate(groups):
                parts = [
                    own[replica][start:stop][mine]
                    if replica in own
                    else self._slot(replica, dtype)[mine]
                    for replica in group
                ]
                total = flat[number][start:stop][mine]
                reduced(op, parts, total)
                self._total(self._memory.index, number, dtype)[mine] = total
            self._collect(len(groups), dtype, machines)
            for number in range(len(groups)):
                into = flat[number][start:stop]
                for member, place in others:
                    into[place] = self._total(member, number, dtype)[place]
        return totals

    def _meet(self) -> None:
        self._memory.meet(self._others)

    # What a span of several machines does in another way.

    def _machines(self, size: int) -> list[slice]:
        """Return the slice of a piece that each machine sums."""
        return [slice(0, size)]

    def _cut(self, size: int) -> tuple[slice, list[tuple[int, slice]]]:
        """Return the slice that this instance sums, and the others', with the arenas
        that their totals come to."""
        return self._cut_here(slice(0, size))

    def _cut_here(self, whole: slice) -> tuple[slice, list[tuple[int, slice]]]:
        cuts = slices(whole, len(self._members))
        parts = dict(zip(self._members, cuts, strict=True))
        return parts.pop(self._memory.index), list(parts.items())

    def _spread(
        self, replicas: Sequence[int], dtype: AnyDtype, machines: Sequence[slice]
    ) -> None:
        """Bring the slots of `replicas` to all who read them: of each its slice."""
        self._meet()

    def _collect(self, groups: int, dtype: AnyDtype, machines: Sequence[slice]) -> None:
        """Bring the totals to all instances."""
        self._meet()

    def _slot(self, replica: int, dtype: AnyDtype) -> Array:
        member, number = self._slots[replica]
        return self._part(member, number, dtype)

    def _total(self, member: int, group: int, dtype: AnyDtype) -> Array:
        return self._part(member, self._capacity + group, dtype)

    def _part(self, member: int, number: int, dtype: AnyDtype) -> Array:
        arena = self._arenas[member]
        return arena[number * PIECE : (number + 1) * PIECE].view(dtype)


def arena_size(capacity: int) -> int:
    """Bytes of an arena: pieces of values and of totals."""
    return 2 * capacity * PIECE


def slices(whole: slice, count: int) -> list[slice]:
    """Return `whole` in so many parts, in their order."""
    size = whole.stop - whole.start
    ends = [whole.start + size * n // count for n in range(count + 1)]
    return [slice(ends[n], ends[n + 1]) for n in range(count)]


def _pieces(value: Array) -> list[tuple[int, int]]:
    """Return the ranges of elements that go at once; one if there are none."""
    step = PIECE // value.itemsize
    starts = range(0, value.size, step) or range(1)
    return [(start, min(start + step, value.size)) for start in starts]
