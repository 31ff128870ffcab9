"""Collectives whose groups span instances.

All groups with members in the same instances are exchanged together: those instances
are a span. First each instance states its position, so that an instance that has left
the lockstep causes an error, not a wrong number. All enter spans in the same order.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from popir.collectives import exchanged, from_total
from popir.dtypes import Array
from popir.errors import RunError
from popir.grouping import Collective, Groups
from popir.instances.identity import Identity
from popir.instances.shared_memory import NOTE

_Span = tuple[int, ...]
#: Most replicas of an instance whose presence a note can state.
_BITS = 256
_NOTE = struct.Struct(f"<QQQ{_BITS // 8}s")


class Span(Protocol):
    """Instances that exchange values together."""

    def barrier(self) -> None: ...

    def agree(self, note: bytes) -> dict[int, bytes]: ...

    def map_arenas(self, offsets: Mapping[int, int]) -> None: ...

    def all_gather(
        self, given: Mapping[int, Array], members: Sequence[int], example: Array
    ) -> dict[int, Array]: ...

    def all_reduce(
        self, op: str, given: Mapping[int, Array], groups: Sequence[Sequence[int]]
    ) -> list[Array]: ...


class Instances:
    """The instances of a program, from the view of one of them.

    opened: opens a span of instances; it returns the span and this instance's arena in
    it. left: tells the others that this instance no longer takes part. Replicas have
    their global numbers. Not thread-safe.
    """

    def __init__(
        self,
        identity: Identity,
        opened: Callable[[_Span], tuple[Span, int]],
        left: Callable[[], None],
    ) -> None:
        self.identity = identity
        self._opened = opened
        self._left = left
        self._spans: dict[_Span, tuple[Span, int]] = {}
        self._of_groups: dict[Groups, list[tuple[_Span, list[list[int]]]]] = {}
        self._is_broken = False

    def exchanged(
        self, name: str, exchange: Collective, given: Mapping[int, Array]
    ) -> dict[int, Array]:
        """Return the results of the replicas of `given`, all of this instance.

        name: of this exchange, the same in all instances. The groups must have members
        in other instances. Raises RunError if an instance does not reach the exchange.
        """
        results: dict[int, Array] = {}
        for span, groups in self._spanning(exchange.groups):
            there = {r: given[r] for group in groups for r in group if r in given}
            if there:
                results.update(self._on(span, name, exchange, groups, there))
        return results

    def gathered(
        self, name: str, given: Mapping[int, Array], wanted: Sequence[int]
    ) -> dict[int, Array]:
        """Return the values of the replicas `wanted`; every instance takes part. given:
        the values of this instance's replicas.
        """
        span = tuple(range(self.identity.count))
        example = next(iter(given.values()))
        with _Breaking(self):
            opened, _ = self._agreed(span, name, example, dict(given), [])
            own = {r: given[r] for r in wanted if r in given}
            return opened.all_gather(own, wanted, example)

    def barrier(self) -> None:
        """Wait until all instances have reached this call."""
        span = tuple(range(self.identity.count))
        with _Breaking(self):
            self._open(span)[0].barrier()

    def leave(self) -> None:
        """Leave the exchange. Instances that wait for this one get RunError.
        Idempotent.
        """
        self._is_broken = True
        self._left()

    def is_local(self, members: Sequence[int]) -> bool:
        """Return whether all of `members` are replicas of this instance."""
        return all(self._owner(r) == self.identity.index for r in members)

    def _owner(self, replica: int) -> int:
        return replica // self.identity.local_replicas

    def _spanning(self, groups: Groups) -> list[tuple[_Span, list[list[int]]]]:
        """Return the spans of this instance with their groups, in the order of all."""
        if groups not in self._of_groups:
            found: dict[_Span, list[list[int]]] = {}
            for members in groups.members:
                span = tuple(sorted({self._owner(r) for r in members}))
                if self.identity.index in span and len(span) > 1:
                    found.setdefault(span, []).append(members)
            self._of_groups[groups] = sorted(found.items())
        return self._of_groups[groups]

    def _on(
        self,
        span: _Span,
        name: str,
        exchange: Collective,
        groups: list[list[int]],
        given: dict[int, Array],
    ) -> dict[int, Array]:
        what, op = exchange.what, exchange.op
        example = next(iter(given.values()))
        with _Breaking(self):
            opened, active = self._agreed(span, name, example, given, groups)
            if what in ("shard", "slice"):
                # Nothing is exchanged, but all instances must read the notes first.
                opened.barrier()
                found = given
            elif what in ("reduce", "scatter"):
                totals = opened.all_reduce(op, given, active)
            else:
                members = [r for group in active for r in group]
                found = opened.all_gather(given, members, example)
        results: dict[int, Array] = {}
        for number, members in enumerate(active):
            count = len(members)
            for rank, replica in enumerate(members):
                if replica not in given:
                    continue
                if what in ("reduce", "scatter"):
                    made = from_total(what, totals[number], count, rank)
                else:
                    own = [found.get(r, example) for r in members]
                    axis, shape = exchange.axis, exchange.shape
                    made = exchanged(what, op, axis, shape, own)[rank]
                results[replica] = made
        return results

    def _agreed(
        self,
        span: _Span,
        name: str,
        example: Array,
        given: Mapping[int, Array],
        groups: list[list[int]],
    ) -> tuple[Span, list[list[int]]]:
        """Meet the other instances of `span`; return the `groups` that have arrived.

        The caller lets the span meet once more before another note is written. Raises
        RunError if an instance has reached another exchange.
        """
        opened, arena = self._open(span)
        present = sum(1 << r % self.identity.local_replicas for r in given)
        about = f"{name} {example.dtype}{list(example.shape)}"
        key = zlib.crc32(about.encode())
        note = _NOTE.pack(
            key, example.nbytes, arena, present.to_bytes(_BITS // 8, "little")
        )
        text = about.encode()[: NOTE - _NOTE.size].ljust(NOTE - _NOTE.size, b"\0")
        notes = opened.agree(note + text)
        arenas, there = {}, set()
        for index, found in notes.items():
            its_key, _, its_arena, bits = _NOTE.unpack_from(found)
            if its_key != key:
                its = found[_NOTE.size :].rstrip(b"\0").decode(errors="replace")
                raise RunError(
                    f"the instances have left the lockstep: instance "
                    f"{self.identity.index} is at {about}, instance {index} at {its}; "
                    "all must run the same program and take the same branches"
                )
            arenas[index] = its_arena
            number = int.from_bytes(bits, "little")
            first = index * self.identity.local_replicas
            there |= {first + n for n in range(_BITS) if number >> n & 1}
        opened.map_arenas(arenas)
        active = []
        for members in groups:
            missing = [r for r in members if r not in there]
            if missing and len(missing) < len(members):
                waiting = [r for r in members if r in there]
                raise RunError(
                    f"{name}: replicas {missing} do not reach it, which replicas "
                    f"{waiting} wait for: all members of a group must take the same "
                    "branches to a collective"
                )
            if not missing:
                active.append(members)
        return opened, active

    def _open(self, span: _Span) -> tuple[Span, int]:
        if self._is_broken:
            raise RunError(
                "this instance has left the lockstep with the others: an earlier "
                "exchange was not finished"
            )
        if span not in self._spans:
            self._spans[span] = self._opened(span)
        return self._spans[span]


class _Breaking:
    """A block whose errors leave the lockstep and notify the other instances."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._instances.leave()
