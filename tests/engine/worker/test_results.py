"""Results of a batch on their way to those who asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.errors import ExecutionFailed
from engine.model.batch_plan import AnchorRows, BatchPlan
from engine.transport.anchor_ring import AnchorRing
from engine.transport.channel import Channel, ChannelLayout
from engine.transport.link import Completion, Link
from engine.transport.outcome import DeviceOutcome
from engine.transport.shared_memory import PAGE
from engine.worker.batch import AnchorTable, Batch, BatchEntry
from engine.worker.client_channel import ClientChannel
from popef_io import Anchor, DataType, TensorInfo, TensorType
from tests.plain import plain

replica = plain("engine.worker.replica")
results = plain("engine.worker.results")

#: Bytes of a row of the output, of which its ring has room for two.
ROW = PAGE // 2
OUTPUT = Anchor("output", "d2h", TensorInfo((-1, ROW), DataType.U8), TensorType.OUTPUT)


def data_of(ring: AnchorRing, request: int) -> tuple[tuple[int, ...], bytes]:
    """The shape and the bytes of a request, which are taken out of the ring."""
    offset, nbytes, shape = ring.record(ring.find(request))
    data = bytes(ring.payload[offset : offset + nbytes])
    ring.skip()
    return shape, data


class Client:
    """The other end: takes results that it has been told of, when it is asked to."""

    def __init__(self) -> None:
        self.link = Link.create()
        layout = ChannelLayout(8, (PAGE,), (2 * ROW,))
        self.channel = Channel.create("test", layout)
        self.got: list[tuple[int, DeviceOutcome]] = []
        self.is_there = True
        nothing: Any = None
        plan = BatchPlan(0, 0, 0, 8, (), (AnchorRows("output", 0),))
        table = AnchorTable((), (OUTPUT,), nothing)
        policy = replica.BatchingPolicy(max_rows=8)
        parts = replica.ReplicaParts(
            0, "m", nothing, (), table, plan, policy, self.take
        )
        self.replica = replica.Replica(parts)
        self.replica.results = results.Results(table, plan, self.take)
        self.mine = ClientChannel(0, self.channel, self.link)

    def take(self, channel: ClientChannel, ring: AnchorRing, size: int) -> int:
        """What waits for room calls this; the offset of the room that there is."""
        ended: deque[Completion] = deque()
        self.link.completions.drain(ended)
        if not ended or not self.is_there:
            raise ExecutionFailed("the client did not collect its results")
        for one in ended:
            self.got.append((one[2], DeviceOutcome(one[1])))
            ring.try_read_lock()
            ring.read_complete()
        return ring.place(size)

    def publish(self, rows: int) -> list[tuple[int, DeviceOutcome]]:
        """A batch of so many requests; what the client has been told in the end."""
        values = np.repeat(np.arange(rows, dtype=np.uint8), ROW).reshape(rows, ROW)
        entries = [BatchEntry(self.mine, 0, number, 1, 0, []) for number in range(rows)]
        batch: Any = SimpleNamespace(
            results=lambda: {0: values},
            entries=entries,
            rows=rows,
            longest=0,
            used=rows,
            bound={},
        )
        self.replica._publish(batch, 0, 1)
        ended: deque[Completion] = deque()
        self.link.completions.drain(ended)
        return [*self.got, *((one[2], DeviceOutcome(one[1])) for one in ended)]

    def close(self) -> None:
        self.channel.close()
        self.link.close()


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


def test_what_has_room_is_given_at_once(client: Client) -> None:
    assert client.publish(2) == [(0, DeviceOutcome.DONE), (1, DeviceOutcome.DONE)]
    assert client.got == []


def test_each_is_told_of_before_the_next_waits_for_room(client: Client) -> None:
    """Told of at the end, they kept each other waiting until the device gave up: a
    client takes what it has been told of, and a batch may be more than there is room
    for."""
    assert client.publish(5) == [(number, DeviceOutcome.DONE) for number in range(5)]
    assert client.got


def test_rows_that_were_computed_in_the_ring_do_not_overwrite_each_other(
    client: Client,
) -> None:
    """A row that is no multiple of 8 bytes begins elsewhere than its record."""
    ring = client.channel.outputs[0]
    rows = np.repeat(np.arange(8, dtype=np.uint8), 101).reshape(8, 101)
    offset = ring.place(rows.nbytes)
    values = np.frombuffer(ring.payload, np.uint8, rows.nbytes, offset).reshape(8, 101)
    values[:] = rows
    entries = [BatchEntry(client.mine, 0, number, 1, 0, []) for number in range(8)]
    batch: Any = SimpleNamespace(
        results=lambda: {0: values}, entries=entries, bound={0: (offset, values)}
    )
    assert [*client.replica.results.publish_each(batch)] == entries
    for number, row in enumerate(rows):
        assert data_of(ring, number) == ((1, 101), row.tobytes())


def test_memory_that_a_ring_returns_takes_no_result_with_it() -> None:
    """An output beyond the usual memory of its ring, whose request waits for room in
    another ring, while the client empties the first."""
    kib = 1 << 10
    info = TensorInfo((-1, 1), DataType.U8)
    outputs = [Anchor(name, name, info, TensorType.OUTPUT) for name in ("a", "b")]
    nothing: Any = None
    table = AnchorTable((), tuple(outputs), nothing)
    rows = AnchorRows("a", 0), AnchorRows("b", 0)
    plan = BatchPlan(0, 0, 0, 8, (), rows)
    usual = (PAGE, kib * kib, kib * kib)
    layout = ChannelLayout(8, (PAGE,), (64 * kib * kib, kib * kib), usual)
    link, channel = Link.create(), Channel.create("test", layout)
    mine = ClientChannel(0, channel, link)
    a, b = channel.outputs

    def release(ring: AnchorRing) -> None:
        assert ring.try_read_lock() >= 0
        ring.read_complete()

    def room(client: ClientChannel, ring: AnchorRing, size: int) -> int:
        release(b)
        return ring.place(size)

    made = results.Results(table, plan, room)
    batch = Batch(table, plan)

    def run(number: int, sizes: tuple[int, int], *, empties: bool = False) -> None:
        batch.begin([BatchEntry(mine, 0, number, sizes[0], 0, [])])
        for handle, size in zip("ab", sizes, strict=True):
            value = np.full((size, 1), number, np.uint8)
            memory = batch.output_memory(handle, value.shape, value.dtype)
            if memory is not None:
                memory[...] = value
                value = memory
            batch.write(handle, value)
        if empties:
            release(a)
        if not made.publish(batch):
            assert empties
            assert len([*made.publish_each(batch)]) == 1
        batch.clear()

    for number in (1, 2):  # what lies beyond the usual memory is returned in two parts
        run(number, ((18 - number) * kib * kib, 10))
    for ring in (a, a, b, b):
        release(ring)
    run(3, (600 * kib, 600 * kib))
    run(4, (600 * kib, 600 * kib), empties=True)
    assert data_of(a, 4) == ((600 * kib, 1), bytes([4]) * (600 * kib))
    channel.close()
    link.close()


def test_what_has_been_given_is_not_run_again_where_the_client_has_gone(
    client: Client,
) -> None:
    client.is_there = False
    told = client.publish(4)
    assert [number for number, _ in told] == [2, 3]
    assert all(outcome is not DeviceOutcome.DONE for _, outcome in told)
