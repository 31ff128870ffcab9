"""One batch in a device process: gathers rows from input slots, scatters results.

A `Batch` is what a program sees as its streams (engine/executor.py) while it runs for
several requests at once. Data is not copied where it need not be: rows that lie side by
side in the ring are one array, and a large output is written by ONNX Runtime straight
into the slot from which the client copies it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.channel import AnchorRing, Channel
from engine.errors import ExecutionFailed, InvalidInput
from engine.tensor import Array
from popef_io import Anchor, DataType, decode_strings, encode_strings

if TYPE_CHECKING:
    from engine.link import Link
    from engine.model_data import ModelData

#: Outputs of at least this many bytes are bound to their slot: below that binding costs
#: more than the copy it saves (bench/LOG.md).
BIND_FROM = 128 * 1024

Waiter = Callable[["ClientChannel", AnchorRing, int], int]


class ClientChannel:
    """A channel as the device process knows it."""

    __slots__ = ("channel", "link", "number", "pending", "priority")

    def __init__(
        self, number: int, channel: Channel, link: Link, priority: int = 0
    ) -> None:
        self.number = number
        #: Level of all its requests (engine/turns.py).
        self.priority = priority
        self.channel = channel
        self.link = link
        self.pending = 0

    def __repr__(self) -> str:
        return f"<ClientChannel {self.number}, {self.pending} pending>"


@dataclass(frozen=True, slots=True)
class AnchorTable:
    """The anchors of a main program, in the order of the rings of a channel.

    `data` is what requests do not carry: frozen inputs, tensor data and feeds.
    """

    inputs: tuple[Anchor, ...]
    outputs: tuple[Anchor, ...]
    data: ModelData


class Entry:
    """One request of a batch. Not a dataclass: one is made for each request."""

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
        #: Where its descriptor is in the channel.
        self.at = at
        self.request = request
        self.rows = rows
        self.submitted = submitted
        self.slots = slots


class Batch:
    """The streams of one run. One object is reused for all runs of a replica."""

    def __init__(self, table: AnchorTable, batch_size: int, wait_room: Waiter) -> None:
        self._input_index = {a.handle: i for i, a in enumerate(table.inputs)}
        self._output_index = {a.handle: i for i, a in enumerate(table.outputs)}
        self._inputs = table.inputs
        self._outputs = table.outputs
        self._data = table.data
        self._batch_size = batch_size
        self._wait_room = wait_room
        self._dtypes = [a.tensor_info.data_type.numpy_dtype for a in table.inputs]
        self._entries: Sequence[Entry] = ()
        self._rows = 0
        self._chunk = 0
        self._gathered: dict[int, Array] = {}
        self._written: dict[int, list[Array]] = {}
        self._bound: dict[int, tuple[int, Array]] = {}

    def begin(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._rows = sum(entry.rows for entry in entries)
        self._chunk = 0
        self._written = {}
        self._bound.clear()

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def runs(self) -> int:
        """How often the program runs for this batch: more than once only where the
        batch size is fixed and a request is larger."""
        if not self._batch_size or not self._rows:
            return 1
        return -(-self._rows // self._batch_size)

    def next_run(self) -> None:
        self._chunk += 1

    def end(self) -> None:
        """Forget the batch, and with it every view of the rings."""
        self._entries = ()
        self._gathered.clear()
        self._written = {}
        self._bound.clear()

    # -- Streams

    def read(self, handle: str) -> Array:
        index = self._input_index.get(handle)
        if index is None:
            return self._given(handle)
        array = self._gathered.get(index)
        if array is None:
            array = self._gather(index)
            if self._batch_size and self._rows:
                array = _padded(array, self.runs * self._batch_size)
                self._gathered[index] = array
        if self._batch_size and self._rows:
            start = self._chunk * self._batch_size
            return array[start : start + self._batch_size]
        return array

    def output_memory(
        self, handle: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        nbytes = dtype.itemsize
        for dim in shape:
            nbytes *= dim
        if nbytes < BIND_FROM or dtype.hasobject or self._batch_size:
            return None
        entries = self._entries
        client = entries[0].client
        if len(entries) > 1 and any(e.client is not client for e in entries):
            return None
        index = self._output_index.get(handle)
        if index is None or index in self._bound:
            return None
        anchor = client.channel.outputs[index]
        offset = anchor.pool.place(nbytes)
        if offset < 0:
            return None
        array = np.frombuffer(
            anchor.payload, dtype, nbytes // dtype.itemsize, offset
        ).reshape(shape)
        self._bound[index] = (offset, array)
        return array

    def write(self, handle: str, value: Array) -> None:
        index = self._output_index.get(handle)
        if index is None:
            return
        self._written.setdefault(index, []).append(value)

    # -- gathering

    def _given(self, handle: str) -> Array:
        value = self._data.read(handle)
        rows = self._batch_size or self._rows
        if rows > 1 and value.ndim and value.shape[0] == 1:
            return np.repeat(value, rows, axis=0)
        return value

    def _gather(self, index: int) -> Array:
        entries = self._entries
        if len(entries) == 1:
            return self._one(index, entries[0])
        touching = self._touching(index)
        if touching is not None:
            return touching
        return np.concatenate([self._one(index, entry) for entry in entries])

    def _one(self, index: int, entry: Entry) -> Array:
        """The data of one request, a view of its slot."""
        slot = entry.slots[index]
        anchor = self._inputs[index]
        if slot < 0:
            raise InvalidInput(
                f"the program reads input {anchor.name!r}, which was not supplied"
            )
        ring = entry.client.channel.inputs[index]
        _, offset, nbytes, rank = ring.head(slot)
        shape = ring.dims(slot, rank)
        if anchor.tensor_info.data_type is DataType.STRING:
            return decode_strings(ring.payload[offset : offset + nbytes], shape)
        dtype = self._dtypes[index]
        if nbytes == 0:
            return np.empty(shape, dtype)
        return np.frombuffer(
            ring.payload, dtype, nbytes // dtype.itemsize, offset
        ).reshape(shape)

    def _touching(self, index: int) -> Array | None:
        """All rows as one view, where they lie side by side in one ring."""
        entries = self._entries
        client = entries[0].client
        ring = client.channel.inputs[index]
        if self._inputs[index].tensor_info.data_type is DataType.STRING:
            return None
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
        dtype = self._dtypes[index]
        count = (end - start) // dtype.itemsize
        flat = np.frombuffer(ring.payload, dtype, count, start)
        return flat.reshape(self._rows, *shape[1:])

    # -- scattering

    def scatter(self) -> None:
        """Copy the results to the requests' output slots and publish them."""
        values = {i: self._joined(v) for i, v in self._written.items()}
        one_client = self._entries[0].client
        if len(self._entries) > 1:
            for index, value in values.items():
                self._check_rows(index, value)
        if all(e.client is one_client for e in self._entries) and self._together(
            one_client, values
        ):
            return
        first = 0
        for entry in self._entries:
            self._scatter_one(entry, values, first)
            first += entry.rows

    def _joined(self, chunks: list[Array]) -> Array:
        if not self._batch_size or not self._rows:
            return chunks[-1]
        whole = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
        return whole[: self._rows]

    def _check_rows(self, index: int, value: Array) -> None:
        if not value.ndim or value.shape[0] != self._rows:
            name = self._outputs[index].name
            raise ExecutionFailed(
                f"output {name!r} has shape {list(value.shape)} for a batch of "
                f"{self._rows} rows: the model must not be batched"
            )

    def _together(self, client: ClientChannel, values: Mapping[int, Array]) -> bool:
        """Publish all at once; False where there is no room for that."""
        places: list[tuple[AnchorRing, Array, int]] = []
        for index, value in values.items():
            if value.dtype.hasobject:
                return False
            anchor = client.channel.outputs[index]
            if anchor.ring.write_available < len(self._entries):
                return False
            bound = self._bound.get(index)
            if bound is not None and bound[1] is value:
                places.append((anchor, value, bound[0]))
                continue
            offset = anchor.pool.place(value.nbytes)
            if offset < 0:
                return False
            _copy(anchor, offset, value)
            places.append((anchor, value, offset))
        entries = self._entries
        for anchor, value, offset in places:
            if len(entries) == 1:
                anchor.describe(
                    0, entries[0].request, offset, value.nbytes, value.shape
                )
            else:
                self._describe_rows(anchor, value, offset)
            anchor.ring.write_complete(len(entries))
        return True

    def _describe_rows(self, anchor: AnchorRing, value: Array, offset: int) -> None:
        tail = value.shape[1:]
        row_bytes = value.nbytes // self._rows if self._rows else 0
        for ahead, entry in enumerate(self._entries):
            nbytes = entry.rows * row_bytes
            anchor.describe(ahead, entry.request, offset, nbytes, (entry.rows, *tail))
            offset += nbytes

    def _scatter_one(
        self, entry: Entry, values: Mapping[int, Array], first: int
    ) -> None:
        for index, value in values.items():
            anchor = entry.client.channel.outputs[index]
            alone = len(self._entries) == 1
            mine = value if alone else value[first : first + entry.rows]
            shape = mine.shape
            if mine.dtype.hasobject:
                mine = np.frombuffer(encode_strings(mine), np.uint8)
            if mine.nbytes > anchor.capacity:
                name = self._outputs[index].name
                raise ExecutionFailed(
                    f"output {name!r} takes {mine.nbytes} bytes, the channel has "
                    f"{anchor.capacity} for it: raise channel_memory"
                )
            offset = anchor.place(mine.nbytes)
            if offset < 0:
                offset = self._wait_room(entry.client, anchor, mine.nbytes)
            _copy(anchor, offset, mine)
            anchor.describe(0, entry.request, offset, mine.nbytes, shape)
            anchor.ring.write_complete()

    def __repr__(self) -> str:
        return f"<Batch {len(self._entries)} requests, {self._rows} rows>"


def _padded(array: Array, rows: int) -> Array:
    """`array` with zero rows after it, `rows` in all (the guide's null data)."""
    missing = rows - array.shape[0]
    if missing <= 0:
        return array
    if array.dtype.hasobject:
        fill = np.full((missing, *array.shape[1:]), b"", dtype=object)
    else:
        fill = np.zeros((missing, *array.shape[1:]), array.dtype)
    return np.concatenate([array, fill])


def _copy(anchor: AnchorRing, offset: int, value: Array) -> None:
    nbytes = value.nbytes
    if nbytes:
        flat = np.ascontiguousarray(value).reshape(-1)
        anchor.payload[offset : offset + nbytes] = flat.view(np.uint8).data
