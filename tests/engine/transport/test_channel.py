"""Layouts, descriptors and the messages that hand channels over.

Covers: engine/model/channel_layout.py, engine/transport/link.py,
engine/transport/shared_memory.py.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque

import pytest

from engine.errors import InvalidModel, QueueFull
from engine.model.channel_layout import LEAST_ROOM, plan_layout
from engine.tensor import DataDesc
from engine.transport.anchor_ring import MAX_RANK
from engine.transport.channel import Channel, ChannelLayout
from engine.transport.link import BACKPRESSURE, PARKED, SLOTS, Completion, Link
from engine.transport.outcome import DeviceOutcome
from engine.transport.shared_memory import PAGE, SharedMemory
from popef_io import DataType


@pytest.mark.parametrize("anchors", [0, 1, 3])
def test_both_ends_see_the_same_rings(anchors: int) -> None:
    layout = ChannelLayout(4, (PAGE,) * anchors, (2 * PAGE,) * anchors)
    client = Channel.create("test", layout)
    device = Channel.attach(os.dup(client.memory.fd), layout)
    for number, (mine, theirs) in enumerate(
        zip(client.inputs + client.outputs, device.inputs + device.outputs, strict=True)
    ):
        shape = tuple(range(number, number + MAX_RANK - 1))
        offset = mine.place(10)
        mine.payload[offset : offset + 10] = bytes([number]) * 10
        mine.describe(0, 7, offset, 10, shape)
        mine.write_complete()
        slot = theirs.try_read_lock()
        assert theirs.head(slot) == (7, offset, 10, len(shape))
        assert theirs.dims(slot, len(shape)) == shape
        assert bytes(theirs.payload[offset : offset + 10]) == bytes([number]) * 10
    device.close()
    client.close()


def test_anchors_do_not_overlap() -> None:
    layout = ChannelLayout(3, (PAGE, 3 * PAGE), (PAGE,))
    channel = Channel.create("test", layout)
    anchors = channel.inputs + channel.outputs
    spans = sorted((a.payload_at, a.payload_size) for a in anchors)
    for (start, size), (following, _) in itertools.pairwise(spans):
        assert start + size <= following
    assert spans[-1][0] + spans[-1][1] <= layout.size
    tables = sorted(a.table_at for a in channel.inputs + channel.outputs)
    assert tables[-1] + 256 * 3 <= layout.payload_at
    channel.close()


def test_a_channel_that_cannot_be_made_leaves_no_descriptor() -> None:
    layout = ChannelLayout(1, (PAGE,), (), (PAGE, PAGE))  # a usual size too many
    with SharedMemory.create("other", layout.size) as memory:
        before = os.listdir("/proc/self/fd")
        with contextlib.suppress(ValueError):
            Channel.create("test", layout)
        with contextlib.suppress(ValueError):
            Channel.attach(os.dup(memory.fd), layout)
        assert os.listdir("/proc/self/fd") == before


def test_a_segment_too_large_for_the_system_leaves_no_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    with contextlib.suppress(OSError):
        SharedMemory.create("test", 1 << 62)
    assert os.listdir("/proc/self/fd") == before


def test_a_segment_that_is_no_channel_is_refused() -> None:
    layout = ChannelLayout(4, (PAGE,), (PAGE,))
    with SharedMemory.create("other", layout.size) as memory:
        with pytest.raises(ValueError, match="not a channel"):
            Channel.attach(os.dup(memory.fd), layout)
        bigger = ChannelLayout(4, (1 << 30,), (PAGE,))
        with pytest.raises(ValueError, match="expected"):
            Channel.attach(os.dup(memory.fd), bigger)


@pytest.mark.parametrize(
    "message",
    [
        [0, [], [], []],
        [1 << 30, [], [], []],
        ["4", [], [], []],
        [4, [1], [], []],
        [4, [1 << 60], [], []],
        [4, ["x"], [], []],
        [4, None, [], []],
        [4, [], [], [PAGE]],
        [4, [PAGE], []],
    ],
)
def test_bad_layouts_are_refused(message: list[object]) -> None:
    with pytest.raises(ValueError, match="channel"):
        ChannelLayout.from_message(message)
    good = ChannelLayout(4, (PAGE,), ())
    assert ChannelLayout.from_message(good.to_message()) == good


def test_memory_is_shared_out_by_need() -> None:
    small = DataDesc("small", (-1, 4), DataType.F32)
    large = DataDesc("large", (-1, 1 << 20), DataType.F32)
    free = DataDesc("free", (-1, -1), DataType.F32)
    layout = plan_layout([small, large], [free], 128, 64, 64 << 20)
    assert layout.usual[0] == LEAST_ROOM > 128 * 64 * 16
    # Never less than two of the largest requests: 64 rows of 4 MiB each.
    assert layout.input_bytes[1] >= layout.usual[1] >= 2 * 64 * (4 << 20)
    assert layout.output_bytes == (64 << 20,) == layout.usual[2:]
    # A request may be as large as the memory: its rows need it by their size.
    pair = [DataDesc(name, (-1, n), DataType.F32) for name, n in (("a", 1), ("b", 7))]
    layout = plan_layout(pair, [], 16, 1, 64 << 20)
    assert layout.input_bytes == (8 << 20, 56 << 20)
    assert layout.usual == (LEAST_ROOM, LEAST_ROOM)
    layout = plan_layout([*pair, free], [], 16, 1, 63 << 20)
    assert layout.input_bytes == (21 << 20,) * 3
    assert plan_layout([], [], 1, 1, PAGE).anchors == 0
    absurd = DataDesc("absurd", (-1, 1 << 40), DataType.F32)
    with pytest.raises(
        InvalidModel, match=r"'absurd' has 4398046511104 bytes in a run"
    ):
        plan_layout([], [absurd], 16, 1, 64 << 20)


def test_completions_carry_everything_and_never_overrun() -> None:
    client = Link.create()
    device = Link.attach(os.dup(client.memory.fd))
    device.words[BACKPRESSURE] = 1
    assert client.words[BACKPRESSURE]
    assert not client.submit(5)
    device.words[PARKED] = 1
    assert client.submit(6)
    assert not device.words[PARKED]  # the side that clears it wakes
    assert list(device.submissions.drain()) == [5, 6]
    assert not device.submissions.drain()
    for number in range(SLOTS):
        client.submit(number)
    with pytest.raises(QueueFull):
        client.submit(SLOTS)
    assert list(device.submissions.drain()) == list(range(SLOTS))  # round the end
    top = (1 << 64) - 1
    most = (1 << 32) - 1
    device.completions.put(
        most, DeviceOutcome.FAILED, top, top, top, top, 7, "ä" * 2000
    )
    taken: deque[Completion] = deque()
    client.completions.drain(taken)
    (done,) = taken
    assert done[:7] == ((1 << 32) - 1, DeviceOutcome.FAILED, top, top, top, top, 7)
    assert done[7].startswith("ä" * 500)
    for number in range(SLOTS):
        assert device.completions.put(1, DeviceOutcome.DONE, number)
    assert not device.completions.put(1, DeviceOutcome.DONE, SLOTS)
    taken.clear()
    client.completions.drain(taken)
    assert [done[2] for done in taken] == list(range(SLOTS))
    client.completions.drain(taken)
    assert len(taken) == SLOTS
    assert device.completions.put(1, DeviceOutcome.DONE, SLOTS)
    device.close()
    client.close()


def test_data_of_a_run_that_failed_later_on_is_dropped() -> None:
    layout = ChannelLayout(8, (PAGE,), (PAGE,))
    channel = Channel.create("test", layout)
    (anchor,) = channel.outputs
    # Request 1 is published twice, 2 only by a run that failed, 3 once.
    for request, data in ((1, b"a"), (1, b"b"), (2, b"c"), (3, b"d")):
        offset = anchor.place(1)
        anchor.payload[offset : offset + 1] = data
        anchor.describe(0, request, offset, 1, (1,))
        anchor.write_complete()
    for request, data in ((1, b"a"), (3, b"d")):
        offset, nbytes, _ = anchor.record(anchor.find(request))
        assert anchor.payload[offset : offset + nbytes] == data
        anchor.skip()
    assert anchor.find(4) == -1
    channel.close()
