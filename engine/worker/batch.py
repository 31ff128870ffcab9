"""One batch in a device process. It gathers rows from input slots for runs of a
program.

While a program runs for several requests at once, a `Batch` is its streams
(engine/programs/executor.py). Data is copied only if necessary. Adjacent rows in the
ring are one array. ONNX Runtime writes a large output directly into the slot from which
the client copies it out. engine/worker/results.py handles the results.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import null_data, padded, part_of
from engine.errors import InvalidInput
from engine.model.batch_plan import AnchorRows, BatchPlan
from engine.programs.model_data import ModelData
from engine.programs.output_binding import BIND_FROM
from engine.programs.session import RunOptions
from engine.tensor import Array
from engine.worker.client_channel import ClientChannel
from popef_io import Anchor, DataType, decode_strings


@dataclass(frozen=True, slots=True)
class AnchorTable:
    """The anchors of a main program, in the order of the rings of a channel.

    `data` is the data that requests do not carry: frozen inputs, tensor data and feeds.
    """

    inputs: tuple[Anchor, ...]
    outputs: tuple[Anchor, ...]
    data: ModelData


class BatchEntry:
    """One request of a batch. Not a dataclass, because each request makes one.

    `rows` counts units (engine/model/batch_plan.py).
    """

    __slots__ = ("at", "client", "request", "rows", "slots", "submitted")

    def __init__(
        self,
        client: ClientChannel,
        at: int,
        request: int,
        rows: int,
        submitted: int,
        slots: list[int],
    ) -> None:
        self.client = client
        #: The place of its descriptor in the channel.
        self.at = at
        self.request = request
        self.rows = rows
        self.submitted = submitted
        self.slots = slots

    def mark_answered(self) -> None:
        """Note that the outcome was reported to the client."""


class RunningBatch:
    """The run in progress: its options and its requests."""

    __slots__ = ("entries", "failure", "options", "since", "unwanted_since")

    def __init__(self, options: RunOptions, entries: Sequence[BatchEntry]) -> None:
        #: When the run was told to end (`time.monotonic_ns`); 0 if it was not.
        self.unwanted_since = 0
        #: When the run began (`time.monotonic_ns`). A batch may run several times.
        self.since = time.monotonic_ns()
        #: The reason why its requests fail if the run is ended early. Empty: they are
        #: cancelled.
        self.failure = ""
        self.options = options
        self.entries = entries

    def end_unwanted(self, now: int) -> None:
        """End the run, because no client waits for its requests."""
        self.options.terminate = True
        self.unwanted_since = self.unwanted_since or now

    def fail(self, why: str) -> None:
        """End the run and fail its requests."""
        self.failure = why
        self.options.terminate = True

    def __repr__(self) -> str:
        return f"<RunningBatch of {len(self.entries)} requests>"


class Batch:
    """The streams of one or more runs. A replica uses one object for all its runs."""

    def __init__(
        self,
        table: AnchorTable,
        plan: BatchPlan,
        timeout: str = "",
        *,
        conditional: bool = False,
    ) -> None:
        self._input_index = {a.handle: i for i, a in enumerate(table.inputs)}
        self._output_index = {a.handle: i for i, a in enumerate(table.outputs)}
        self._inputs = table.inputs
        self._data = table.data
        self._plan = plan
        self._timeout = timeout
        self._conditional = conditional
        self._dtypes = [a.tensor_info.data_type.numpy_dtype for a in table.inputs]
        self._repeats = any(a.transfers > 1 for a in (*plan.inputs, *plan.outputs))
        self._gathered: dict[int, Array] = {}
        self._transferred: dict[str, int] = {}
        self.entries: Sequence[BatchEntry] = ()
        self.rows = 0
        #: The length of the longest row; 0 if rows have no length.
        self.longest = 0
        self.skip = 0
        self.runs = 1
        self._run = 0
        self._sliced = False
        #: Whether this iteration and all later ones work only on zeros.
        self._idle = False
        #: The data that was written once, by output. `_written` has the parts if
        #: requests are sliced.
        self._whole: dict[int, Array] = {}
        self._written: dict[int, list[Array]] = {}
        #: For each output: the offset where ONNX Runtime writes, and the view of that
        #: memory.
        self.bound: dict[int, tuple[int, Array]] = {}

    def begin(
        self, entries: Sequence[BatchEntry], skip: int = 0, runs: int = 0
    ) -> None:
        """Take `entries`. Their first `skip` units have already run.

        `runs` 0 means as many runs as the entries fill. Zeros complete the last run.
        """
        self.entries = entries
        rows = 0
        for entry in entries:
            rows += entry.rows
        self.rows = rows
        self.skip = skip
        self._run = 0
        self._idle = False
        each = self._plan.run_units
        if each:
            self.runs = runs or max(1, -(-(rows - skip) // each))
            whole = self.runs == 1 and rows == each and not skip
            self._sliced = self._repeats or not whole
        else:
            self._sliced = self._repeats
        if self._sliced:
            self._gathered.clear()
            self._transferred.clear()

    @property
    def used(self) -> int:
        """Return the number of units that the runs take from the entries. The rest
        stays.
        """
        left = self.rows - self.skip
        each = self._plan.run_units
        return min(left, self.runs * each) if each else left

    def next_run(self) -> None:
        """Record that the program has run once."""
        self._run += 1
        self._transferred.clear()

    def clear(self) -> None:
        """Drop the batch, and with it every view of the rings."""
        self.entries = ()
        self.rows = 0
        self._gathered.clear()
        self._whole = {}
        self._written = {}
        self.bound.clear()

    # -- Streams

    def read(self, handle: str) -> Array:
        index = self._input_index.get(handle)
        if index is None:
            return self._given(handle)
        if self._sliced:
            return self._slice(index, handle)
        if len(self.entries) == 1:
            return self._one(index, self.entries[0])
        return self._gather(index)

    def brings(self, handle: str) -> bool:
        """Return whether the requests have this input. Either all of them have it or
        none.
        """
        index = self._input_index.get(handle)
        return index is not None and self.entries[0].slots[index] >= 0

    def output_memory(
        self, handle: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        nbytes = dtype.itemsize
        for dim in shape:
            nbytes *= dim
        if nbytes < BIND_FROM or dtype.hasobject or self._sliced:
            return None
        entries = self.entries
        client = entries[0].client
        if len(entries) > 1 and (
            self._plan.dim or any(e.client is not client for e in entries)
        ):
            return None
        index = self._output_index.get(handle)
        if index is None or index in self.bound:
            return None
        anchor = client.channel.outputs[index]
        offset = anchor.place(nbytes)
        if offset < 0 or anchor.write_available < len(entries):
            return None
        array = np.frombuffer(
            anchor.payload, dtype, nbytes // dtype.itemsize, offset
        ).reshape(shape)
        self.bound[index] = (offset, array)
        return array

    def write(self, handle: str, value: Array) -> None:
        index = self._output_index.get(handle)
        if index is None:
            return
        if self._sliced:
            rows = self._plan.outputs[index]
            position = self._position(handle, rows)
            if rows.size and position * rows.size >= self.used * rows.span:
                return  # computed from zeros alone
            if self._idle and self._conditional:
                return  # and the selector was a zero
            self._written.setdefault(index, []).append(value)
        else:
            self._whole[index] = value

    def results(self) -> dict[int, Array]:
        """Return the written data by output, without units that belong to no entry."""
        if not self._sliced:
            return self._whole
        return {i: self._joined(i, chunks) for i, chunks in self._written.items()}

    def _joined(self, index: int, chunks: list[Array]) -> Array:
        rows, dim = self._plan.outputs[index], self._plan.dim
        if len(chunks) == 1:
            whole = chunks[0]
        elif chunks[0].ndim:
            whole = np.concatenate(chunks, dim)
        else:
            whole = np.stack(chunks)
        wanted = self.used * rows.span
        if not (rows.size or self._plan.max_units) or whole.ndim <= dim:
            return whole
        return whole if whole.shape[dim] <= wanted else part_of(whole, dim, 0, wanted)

    # -- several transfers

    def _position(self, handle: str, rows: AnchorRows) -> int:
        """Return which transfer of the whole batch this one is."""
        count = self._transferred.get(handle, 0)
        self._transferred[handle] = count + 1
        return self._run * rows.transfers + count

    def _slice(self, index: int, handle: str) -> Array:
        """Return the data of the next transfer, completed with zeros."""
        rows, dim = self._plan.inputs[index], self._plan.dim
        position = self._position(handle, rows)
        size = rows.size
        if not size:
            return self._equal_part(index, rows, position)
        before = self.skip * rows.span
        start, end = position * size, self.used * rows.span
        if start >= end:
            self._idle = True
        if start >= end or (self._idle and self._conditional):
            return self._zeros(index, size)
        whole = self._all_rows(index)
        if not self._inputs[index].tensor_info.shape:
            return whole.reshape(-1)[before + start : before + start + 1].reshape(())
        part = part_of(whole, dim, before + start, before + min(start + size, end))
        return padded(part, dim, size)

    def _equal_part(self, index: int, rows: AnchorRows, position: int) -> Array:
        """Return the present iteration's part of a request whose batch size is free."""
        if rows.transfers == 1:
            return self._gather(index)
        whole, dim = self._all_rows(index), self._plan.dim
        extent = whole.shape[dim] if whole.ndim > dim else 0
        if not extent or (extent % rows.transfers and not self._plan.max_units):
            raise InvalidInput(
                f"dimension {dim} of input {self._inputs[index].name!r} must be a "
                f"multiple of the {rows.transfers} device iterations, got {extent}"
            )
        size = -(-extent // rows.transfers)
        start = min(position * size, extent)
        part = part_of(whole, dim, start, min(start + size, extent))
        return padded(part, dim, size)

    def _all_rows(self, index: int) -> Array:
        array = self._gathered.get(index)
        if array is None:
            array = self._gathered[index] = self._gather(index)
        return array

    def _zeros(self, index: int, size: int) -> Array:
        """Return one transfer of null data, even if the requests do not have this
        input.
        """
        info = self._inputs[index].tensor_info
        shape = info.shape or ()
        if any(e.slots[index] < 0 for e in self.entries):
            dims = tuple(max(1, d) for d in shape)
        else:
            whole = self._all_rows(index)
            dims = whole.shape if shape else ()
        if dims:
            dim = self._plan.dim
            dims = (*dims[:dim], size, *dims[dim + 1 :])
        return null_data(dims, self._dtypes[index])

    # -- gathering

    def _given(self, handle: str) -> Array:
        value = self._data.read(handle)
        plan = self._plan
        if plan.run_units or not plan.max_units:
            return value
        rows, dim = self.rows, plan.dim
        if rows > 1 and value.ndim > dim and value.shape[dim] == 1:
            return np.repeat(value, rows, axis=dim)
        return value

    def _gather(self, index: int) -> Array:
        entries = self.entries
        if len(entries) == 1:
            return self._one(index, entries[0])
        plan, info = self._plan, self._inputs[index].tensor_info
        must_fit = plan.run_units > 0
        if not plan.dim and info.data_type is not DataType.STRING:
            rows = self.rows * plan.inputs[index].span
            dtype = self._dtypes[index]
            together = _adjacent(entries, index, dtype, rows, must_fit)
            if together is not None:
                return together
        parts = [self._one(index, entry) for entry in entries]
        if must_fit:
            parts = self._clipped(index, parts)
        if not info.shape:
            parts = [np.atleast_1d(part) for part in parts]
        return np.concatenate(parts, plan.dim)

    def _clipped(self, index: int, parts: list[Array]) -> list[Array]:
        """Return the rows that count, because a request that fills up a run may have
        too many.
        """
        dim, span = self._plan.dim, self._plan.inputs[index].span
        return [
            part
            if part.ndim <= dim or part.shape[dim] == entry.rows * span
            else part_of(part, dim, 0, entry.rows * span)
            for part, entry in zip(parts, self.entries, strict=True)
        ]

    def _one(self, index: int, entry: BatchEntry) -> Array:
        """Return the data of one request, a view of its slot."""
        slot = entry.slots[index]
        anchor = self._inputs[index]
        if slot < 0:
            raise InvalidInput(
                f"the program reads input {anchor.name!r}, which was not supplied"
                f"{self._timeout}"
            )
        ring = entry.client.channel.inputs[index]
        offset, nbytes, shape = ring.record(slot)
        if anchor.tensor_info.data_type is DataType.STRING:
            return decode_strings(ring.payload[offset : offset + nbytes], shape)
        dtype = self._dtypes[index]
        if nbytes == 0:
            return np.empty(shape, dtype)
        return np.frombuffer(
            ring.payload, dtype, nbytes // dtype.itemsize, offset
        ).reshape(shape)

    def __repr__(self) -> str:
        return f"<Batch {len(self.entries)} requests, {self.rows} rows>"


def _adjacent(
    entries: Sequence[BatchEntry],
    index: int,
    dtype: np.dtype[Any],
    rows: int,
    must_fit: bool,
) -> Array | None:
    """Return all rows of an input as one view if they are adjacent in one ring, else
    None. If `must_fit`, they have to be exactly `rows`.
    """
    client = entries[0].client
    ring = client.channel.inputs[index]
    start = end = -1
    shape: tuple[int, ...] = ()
    for entry in entries:
        slot = entry.slots[index]
        if entry.client is not client or slot < 0:
            return None
        _, offset, nbytes, rank = ring.head(slot)
        if end < 0:
            start = offset
            shape = ring.dims(slot, rank)
        elif offset != end:
            return None
        end = offset + nbytes
    if start == end:
        return None
    count = (end - start) // dtype.itemsize
    flat = np.frombuffer(ring.payload, dtype, count, start)
    if must_fit and count != rows * math.prod(shape[1:]):
        return None
    return flat.reshape(rows, *shape[1:])
