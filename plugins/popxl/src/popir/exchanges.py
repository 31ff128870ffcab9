"""Exchanges between blocks that are not ONNX graphs: reading and writing rows, values
between replicas.

An executable expresses exchanges as streams that the caller does not serve. This module
takes the values of `<name>_row`, `<name>_at` and `<name>_in`, and supplies those of
`<name>_row` and `<name>_out`. A program without exchanges is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from popir import collectives
from popir.dtypes import Array
from popir.errors import RunError
from popir.grouping import Collective
from popir.remote import RemoteBuffer
from popir.thread_pool import ALONE, ThreadPool

if TYPE_CHECKING:
    from popir.instances import Instances

Part: TypeAlias = Literal["row", "at", "value"]


@dataclass(frozen=True, eq=False, slots=True)
class RemoteLoad:
    """Reads a row.

    `offset`: its place; None: the program sends the place first, as `at`.
    """

    buffer: RemoteBuffer
    offset: int | None


@dataclass(frozen=True, eq=False, slots=True)
class RemoteStore:
    """Writes a row."""

    buffer: RemoteBuffer
    offset: int | None


Exchange: TypeAlias = RemoteLoad | RemoteStore | Collective


@dataclass(slots=True)
class ExchangeStreams:
    """The streams of a program that this module serves."""

    sent: dict[str, tuple[Exchange, Part]] = field(default_factory=dict)
    received: dict[str, Exchange] = field(default_factory=dict)


class Exchanges:
    """Performs the exchanges of those streams. `replicas` are in their order.

    instances: the processes that run the program; default: only this one.
    """

    def __init__(
        self, ends: ExchangeStreams, instances: Instances | None = None
    ) -> None:
        self._ends = ends
        self._instances = instances
        self._first = 0 if instances is None else instances.identity.offset
        self._waiting: dict[tuple[Exchange, Part], dict[int, Any]] = {}

    def sinks(self) -> Mapping[str, Callable[[Array], None]]:
        """Return functions for one replica that take outgoing values."""

        def taking(handle: str) -> Callable[[Array], None]:
            return lambda value: self.send(handle, (0,), (value,))

        return {handle: taking(handle) for handle in self._ends.sent}

    def sources(self) -> Mapping[str, Callable[[], Array]]:
        """Return functions for one replica that give incoming values."""

        def giving(handle: str) -> Callable[[], Array]:
            return lambda: self.receive(handle, (0,))[0]

        return {handle: giving(handle) for handle in self._ends.received}

    def begin(self) -> None:
        """Forget the unfinished exchanges of an earlier run."""
        self._waiting.clear()

    def knows(self, handle: str) -> bool:
        """Return whether this module serves the stream."""
        return handle in self._ends.sent or handle in self._ends.received

    def send(
        self,
        handle: str,
        replicas: Sequence[int],
        values: Sequence[Array],
        pool: ThreadPool = ALONE,
        is_free: bool = False,
    ) -> None:
        """Take the value that each of `replicas` sends.

        pool: shares large sums. is_free: a sum may overwrite one of `values`.
        """
        exchange, part = self._ends.sent[handle]
        waiting = self._waiting.setdefault((exchange, part), {})
        if isinstance(exchange, Collective):
            numbers = [self._first + replica for replica in replicas]
            given = dict(zip(numbers, values, strict=True))
            made = _together(exchange, given, self._instances, pool, is_free)
            if self._instances is not None:
                name = f"{exchange.operator} ({handle})"
                made |= self._instances.exchanged(name, exchange, given)
            waiting.update((n - self._first, value) for n, value in made.items())
        elif part == "at":
            places = [int(v.reshape(-1)[0]) for v in values]
            waiting.update(zip(replicas, places, strict=True))
        else:
            copies = [np.array(v) for v in values]
            waiting.update(zip(replicas, copies, strict=True))
        if isinstance(exchange, RemoteStore):
            self._store(exchange, replicas)

    def receive(self, handle: str, replicas: Sequence[int]) -> list[Array]:
        """Return the values for `replicas`."""
        exchange = self._ends.received[handle]
        if isinstance(exchange, RemoteLoad):
            at = self._waiting.get((exchange, "at"), {})
            places = [_place(exchange, at, r) for r in replicas]
            pairs = zip(replicas, places, strict=True)
            return [exchange.buffer.load(r, place) for r, place in pairs]
        results = self._waiting[exchange, "value"]
        return [results.pop(r) for r in replicas]

    def _store(self, exchange: RemoteStore, replicas: Sequence[int]) -> None:
        at = self._waiting.get((exchange, "at"), {})
        rows = self._waiting.get((exchange, "row"), {})
        for replica in replicas:
            if replica in rows and (exchange.offset is not None or replica in at):
                place = _place(exchange, at, replica)
                exchange.buffer.store(replica, place, rows.pop(replica))


def _place(exchange: RemoteLoad | RemoteStore, at: dict[int, int], replica: int) -> int:
    return at.pop(replica) if exchange.offset is None else exchange.offset


def _together(
    exchange: Collective,
    given: Mapping[int, Array],
    instances: Instances | None,
    pool: ThreadPool,
    is_free: bool,
) -> dict[int, Array]:
    """Return the results of the members of groups that are complete in this process."""
    results: dict[int, Array] = {}
    for members in exchange.groups.members:
        there = [r for r in members if r in given]
        if not there or not (instances is None or instances.is_local(members)):
            continue
        if there != members:
            missing = [r for r in members if r not in given]
            raise RunError(
                f"{exchange.operator}: replicas {missing} do not reach it, which "
                f"replicas {there} wait for: all members of a group must take the same "
                "branches to a collective"
            )
        what, op = exchange.what, exchange.op
        own = [given[r] for r in members]
        made = collectives.exchanged(
            what, op, exchange.axis, exchange.shape, own, pool, is_free
        )
        results.update(zip(members, made, strict=True))
    return results
