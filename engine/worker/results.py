"""The results of a batch, which go to the output slots of its requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from engine.arrays import free_strings, part_of
from engine.errors import ExecutionFailed, counted
from engine.model.batch_plan import BatchPlan
from engine.tensor import Array
from engine.transport.anchor_ring import AnchorRing
from engine.transport.bulk_copy import COPIED_AT_ONCE
from engine.transport.outcome import DeviceOutcome
from engine.worker.batch import AnchorTable, Batch, BatchEntry
from engine.worker.client_channel import ClientChannel
from popef_io import encode_strings

Waiter: TypeAlias = Callable[[ClientChannel, AnchorRing, int], int]
Values: TypeAlias = Mapping[int, Array]
"""Arrays by the index of their output."""
#: After a large output, so many runs go aside.
_RUNS_ASIDE = 20


class Results:
    """Copies results to the requests' slots and publishes them."""

    def __init__(self, table: AnchorTable, plan: BatchPlan, wait_room: Waiter) -> None:
        self._outputs = table.outputs
        self._plan = plan
        self._wait_room = wait_room
        #: The number of next runs that count as large, because an output was.
        self.large_runs = 0

    def publish(self, batch: Batch) -> bool:
        """Give all requests of a batch their rows at once.

        Return False if there is no room. The caller then publishes them one by one
        (`publish_each`).
        """
        values = batch.results()
        entries = batch.entries
        client = entries[0].client
        self.large_runs = max(0, self.large_runs - 1)
        if len(entries) > 1:
            self.check(batch, values)
            if self._plan.dim or any(entry.client is not client for entry in entries):
                return False
        # Publish nothing before all outputs have room. Otherwise requests are published
        # one by one as room appears, and none of their outputs may be published
        # already.
        places: list[tuple[int, AnchorRing, Array, int]] = []
        for index, value in values.items():
            if value.dtype.hasobject:
                return False
            anchor = client.channel.outputs[index]
            # `place` checks only for one free slot.
            if len(entries) > 1 and anchor.write_available < len(entries):
                return False
            if value.nbytes > COPIED_AT_ONCE * len(entries):
                self.large_runs = _RUNS_ASIDE
            bound = batch.bound.get(index)
            if bound is not None and bound[1] is value:
                places.append((index, anchor, value, bound[0]))
                continue
            offset = anchor.place(value.nbytes)
            if offset < 0:
                return False
            _copy(anchor, offset, value)
            places.append((index, anchor, value, offset))
        for index, anchor, value, offset in places:
            if len(entries) == 1:
                request = entries[0].request
                anchor.describe(0, request, offset, value.nbytes, value.shape)
            else:
                self._describe_rows(batch, index, anchor, value, offset)
            anchor.write_complete(len(entries))
        return True

    def publish_each(self, batch: Batch) -> Iterator[BatchEntry]:
        """Give each request of a batch its rows as soon as there is room for them.

        The caller must notify the client of each request before taking the next. The
        client only takes announced results, and a whole batch may exceed the room.
        """
        values, bound = batch.results(), batch.bound
        entries = batch.entries
        first = 0
        if bound:
            # The program wrote these rows into free memory of the ring. Their records
            # begin at other places there, and would overwrite rows that follow. A ring
            # that is empty now may also return this memory to the system.
            values = {i: v.copy() if i in bound else v for i, v in values.items()}
        for entry in entries:
            is_only = len(entries) == 1
            mine = values if is_only else self.rows_of(entry, values, first)
            self.publish_one(entry, mine)
            yield entry
            first += entry.rows
        mine = {}
        free_strings(values)

    def rows_of(self, entry: BatchEntry, values: Values, first: int) -> Values:
        """Return the rows of one request, which begin at the unit `first`."""
        return self.part(values, first, first + entry.rows)

    def part(self, values: Values, first: int, end: int) -> dict[int, Array]:
        """Return the units `first` to `end` of a batch's output."""
        parts: dict[int, Array] = {}
        for index, value in values.items():
            span = self._plan.outputs[index].span
            mine = part_of(value, self._plan.dim, first * span, end * span)
            parts[index] = _scalar(mine) if self._shape(index) == () else mine
        return parts

    def join(self, index: int, parts: Sequence[Array]) -> Array:
        """Return one output of a request, joined from the parts of its runs."""
        if len(parts) == 1:
            return parts[0]
        if self._shape(index) == ():
            return np.concatenate([np.atleast_1d(part) for part in parts])
        return np.concatenate(parts, self._plan.dim)

    def publish_one(self, entry: BatchEntry, values: Values) -> None:
        """Hand over the whole result of one request."""
        for index, mine in values.items():
            anchor = entry.client.channel.outputs[index]
            shape = mine.shape
            if mine.dtype.hasobject:
                mine = np.frombuffer(encode_strings(mine), np.uint8)
            if mine.nbytes > anchor.payload_size:
                name = self._outputs[index].name
                raise ExecutionFailed(
                    f"output {name!r} has {mine.nbytes} bytes, which exceeds the "
                    f"limit of {anchor.payload_size}: send fewer rows at once, or "
                    "raise channel_memory"
                )
            offset = anchor.place(mine.nbytes)
            if offset < 0:
                offset = self._wait_room(entry.client, anchor, mine.nbytes)
            _copy(anchor, offset, mine)
            anchor.describe(0, entry.request, offset, mine.nbytes, shape)
            anchor.write_complete()

    def check(self, batch: Batch, values: Values) -> None:
        """Raise ExecutionFailed if an output and the input differ in their rows."""
        dim = self._plan.dim
        for index, value in values.items():
            wanted = batch.used * self._plan.outputs[index].span
            shape = value.shape or (1,)
            if len(shape) <= dim or shape[dim] != wanted:
                name = self._outputs[index].name
                raise ExecutionFailed(
                    f"output {name!r} has shape {list(value.shape)} for a batch of "
                    f"{counted(batch.used, 'row')}: switch off batching for the model"
                )

    def _describe_rows(
        self, batch: Batch, index: int, anchor: AnchorRing, value: Array, offset: int
    ) -> None:
        tail = value.shape[1:]
        span = self._plan.outputs[index].span
        unit_bytes = value.nbytes // batch.rows if batch.rows else 0
        scalar = self._shape(index) == ()
        units, shape = -1, value.shape
        for ahead, entry in enumerate(batch.entries):
            nbytes = entry.rows * unit_bytes
            if entry.rows != units:  # most requests are as large as the one before
                units, rows = entry.rows, entry.rows * span
                shape = () if scalar and rows == 1 else (rows, *tail)
            anchor.describe(ahead, entry.request, offset, nbytes, shape)
            offset += nbytes

    def _shape(self, index: int) -> tuple[int, ...] | None:
        return self._outputs[index].tensor_info.shape

    def __repr__(self) -> str:
        return f"<Results of {[anchor.name for anchor in self._outputs]}>"


def _scalar(value: Array) -> Array:
    """Return a scalar output: without dimensions for one unit, with one for several."""
    return value.reshape(()) if value.size == 1 else value


def _copy(anchor: AnchorRing, offset: int, value: Array) -> None:
    nbytes = value.nbytes
    if nbytes:
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        if nbytes > COPIED_AT_ONCE:  # numpy lets other threads go on meanwhile
            np.copyto(np.frombuffer(anchor.payload, np.uint8, nbytes, offset), flat)
        else:
            anchor.payload[offset : offset + nbytes] = flat.data


def answer(
    entry: BatchEntry,
    outcome: DeviceOutcome,
    started: int,
    took: int = 0,
    rows: int = 0,
    longest: int = 0,
    text: str = "",
) -> None:
    """Tell the client the outcome of a request. Its run had `rows` rows (0: the
    request's own) and took `took` nanoseconds (0: from `started` until now).
    """
    entry.client.completions.put(
        entry.client.number,
        outcome,
        entry.request,
        max(0, started - entry.submitted),
        took or time.monotonic_ns() - started,
        rows or entry.rows,
        longest,
        text,
    )
    entry.mark_answered()
