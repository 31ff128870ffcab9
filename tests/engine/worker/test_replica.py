"""When a replica starts a batch, and which requests it counts on.

Covers: engine/transport/outcome.py, engine/worker/batching_policy.py,
engine/worker/client_channel.py.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from engine.model.batch_plan import BatchPlan
from engine.transport.channel import REQUEST, Channel, ChannelLayout
from engine.transport.link import Completion, Link
from engine.transport.outcome import DeviceOutcome
from engine.transport.shared_memory import PAGE
from engine.worker.batch import AnchorTable
from engine.worker.batching_policy import VAIN_DELAYS, BatchingPolicy
from engine.worker.client_channel import ClientChannel
from tests.plain import plain

replica = plain("engine.worker.replica")
JUDGED_BY = replica.JUDGED_BY

DELAY = 1_000
SECOND = 1_000_000_000


class Written:
    """A replica that waits for four rows, with real rings and nothing to run."""

    def __init__(self, **policy: Any) -> None:
        self.link = Link.create()
        self.channel = Channel.create("test", ChannelLayout(8, (PAGE,), (PAGE,)))
        self.client = ClientChannel(0, self.channel, self.link)
        nothing: Any = None
        usual: dict[str, Any] = {"max_rows": 8, "delay_ns": DELAY, "preferred": (4,)}
        parts = replica.ReplicaParts(
            0,
            "m",
            nothing,
            (),
            AnchorTable((), (), nothing),
            BatchPlan(0, 0, 0, 8, (), ()),
            BatchingPolicy(**usual | policy),
            nothing,
        )
        self.replica = replica.Replica(parts)
        self.replica.add(self.client)

    def write(self, submitted: int, deadline: int = 0, width: int = 0) -> None:
        """Put a request of one row into the ring, not yet announced; with an input of
        this width if there is one."""
        if width:
            ring = self.channel.inputs[0]
            ring.describe(0, submitted, ring.place(8 * width), 8 * width, (1, width))
            ring.write_complete()
        slot = self.channel.requests.try_write_lock()
        at = self.channel.request_at(slot)
        REQUEST.pack_into(self.channel.view, at, submitted, 1, 0, deadline, submitted)
        self.channel.requests.write_complete()

    def queue(self, *deadlines: int) -> None:
        """Requests 1, 2, … with so many seconds left, announced."""
        now = time.monotonic_ns()
        for number, left in enumerate(deadlines, 1):
            self.write(number, now + left * SECOND)
        self.client.pending = len(deadlines)

    def step(self, took: int = 0) -> list[int]:
        """The numbers of the requests of the next batch, which takes `took` seconds."""
        taken: list[int] = []

        def run(started: int) -> None:
            entries = self.replica._batch.entries
            taken.extend(entry.request for entry in entries)
            for entry in entries:
                entry.client.link.completions.put(0, DeviceOutcome.DONE, entry.request)
            self.replica._took.append(took * SECOND)
            self.replica._members = len(entries)
            self.replica._ended = time.monotonic_ns()

        self.replica._execute = run
        self.replica.step()
        return taken

    def ended(self) -> list[tuple[int, DeviceOutcome]]:
        taken: deque[Completion] = deque()
        self.link.completions.drain(taken)
        return [(c[2], DeviceOutcome(c[1])) for c in taken]

    def close(self) -> None:
        self.channel.close()
        self.link.close()


@pytest.fixture
def written() -> Iterator[Written]:
    made = Written()
    yield made
    made.close()


def test_enough_rows_end_the_delay(written: Written) -> None:
    for number in range(4):
        written.write(100 + number)
        written.client.pending += 1
        due = written.replica.due_ns(500)
        assert due == (500 if number == 3 else 100 + DELAY)


def learn_alone(written: Written) -> None:
    """Run requests of which each waited for the whole delay, and none meets another."""
    for _ in range(VAIN_DELAYS):
        written.write(time.monotonic_ns() - DELAY)
        written.client.pending = 1
        # Its delay began after the run before it.
        written.replica._ended = 0
        assert len(written.step()) == 1
    written.ended()


def test_delays_in_vain_are_given_up_until_requests_overlap(written: Written) -> None:
    def due() -> int:
        written.write(100)
        written.client.pending = 1
        found = written.replica.due_ns(500)
        assert len(written.step()) == 1
        return int(found)

    learn_alone(written)
    # This one came while another ran, so the next waits again.
    assert due() == 500
    assert due() == 100 + DELAY


def test_a_batch_of_two_shows_that_delays_gather(written: Written) -> None:
    learn_alone(written)
    written.queue(60, 60)
    written.replica._ended = 0
    assert len(written.step()) == 2
    written.write(100)
    written.client.pending = 1
    assert written.replica.due_ns(500) == 100 + DELAY


def test_a_request_not_yet_announced_is_not_counted_on(written: Written) -> None:
    """A batch is taken from what was announced: were it due for a row more than that,
    it would start short, and the row behind it wait for three others."""
    for number in range(4):
        written.write(100 + number)
    written.client.pending = 3
    assert written.replica.due_ns(500) == 100 + DELAY
    written.client.pending = 4
    assert written.replica.due_ns(500) == 500


def test_who_is_late_does_not_split_a_batch(written: Written) -> None:
    """Results are taken in the order of requests, so it is told after those before."""
    written.queue(60, -1, 60, 60)
    assert written.step() == [1, 3, 4]
    done = DeviceOutcome.DONE
    expected = [(1, done), (3, done), (4, done), (2, DeviceOutcome.EXPIRED)]
    assert written.ended() == expected
    assert not written.replica.pending
    assert written.channel.requests.write_available == 8


def learn_slow(written: Written, seconds: int = 5) -> None:
    for _ in range(JUDGED_BY):
        written.queue(60, 60, 60, 60)
        assert written.step(seconds) == [1, 2, 3, 4]
    written.ended()


def test_what_cannot_be_in_time_any_more_is_given_up_for_those_behind(
    written: Written,
) -> None:
    learn_slow(written)
    written.queue(1, 2, 60, 60)
    assert written.step() == [3, 4]
    assert written.ended()[2:] == [
        (1, DeviceOutcome.EXPIRED),
        (2, DeviceOutcome.EXPIRED),
    ]


def test_where_nobody_waits_behind_it_is_tried(written: Written) -> None:
    learn_slow(written)
    written.queue(1, 2, 3, 4)
    assert written.step() == [4]
    written.queue(1)
    assert written.step() == [1]


def test_one_slow_batch_proves_nothing(written: Written) -> None:
    for took in (1, 5, 1):
        written.queue(60, 60, 60, 60)
        written.step(took)
    written.queue(2, 2, 2, 2)
    assert written.step() == [1, 2, 3, 4]
    # Nor is a small batch known by what large ones took.
    learn_slow(written)
    written.queue(1, 1)
    assert written.step() == [1, 2]


# -- shapes


@pytest.fixture
def mixed() -> Iterator[Written]:
    """A replica whose batches are of requests of one width."""
    made = Written(same_shapes=True, preferred=())
    yield made
    made.close()


def announce(replica: Written, *requests: tuple[int, int]) -> None:
    """Submit requests of (submitted, width)."""
    for submitted, width in requests:
        replica.write(submitted, width=width)
    replica.client.pending += len(requests)


def test_other_shapes_do_not_wait_for_the_delay_of_those_before(mixed: Written) -> None:
    announce(mixed, (101, 2), (102, 2))
    assert mixed.replica.due_ns(500) == 101 + DELAY
    announce(mixed, (103, 3))
    # No request can join the two of width 2 any more.
    assert mixed.replica.due_ns(500) <= 500
    assert mixed.step() == [101, 102]
    # The third has a delay of its own, in which others of its shape can come.
    assert mixed.replica.due_ns(500) == 103 + DELAY
    announce(mixed, (104, 3))
    assert mixed.replica.due_ns(500) == 103 + DELAY
    announce(mixed, (105, 2))
    assert mixed.step() == [103, 104]
    assert mixed.step() == [105]


def test_shapes_of_several_channels_are_compared_in_their_turn(mixed: Written) -> None:
    other = Channel.create("other", ChannelLayout(8, (PAGE,), (PAGE,)))
    client = ClientChannel(1, other, mixed.link)
    mixed.replica.add(client)
    try:
        announce(mixed, (101, 2))
        ring = other.inputs[0]
        ring.describe(0, 102, ring.place(24), 24, (1, 3))
        ring.write_complete()
        REQUEST.pack_into(
            other.view,
            other.request_at(other.requests.try_write_lock()),
            102,
            1,
            0,
            0,
            102,
        )
        other.requests.write_complete()
        assert mixed.replica.due_ns(500) == 101 + DELAY  # it is not announced yet
        client.pending = 1
        assert mixed.replica.due_ns(500) <= 500
        assert sorted([mixed.step(), mixed.step()]) == [[101], [102]]
    finally:
        mixed.replica.remove(client)
        other.close()


def test_a_preferred_size_is_counted_among_equal_shapes() -> None:
    mixed = Written(same_shapes=True, preferred=(2,), delay_ns=3600 * SECOND)
    try:
        now = time.monotonic_ns()
        announce(mixed, (now, 2), (now + 1, 3), (now + 2, 3), (now + 3, 3))
        assert mixed.replica.due_ns(now) <= now
        assert mixed.step() == [now]
        assert mixed.replica.due_ns(now) <= now
        assert mixed.step() == [now + 1, now + 2]
        assert mixed.replica.due_ns(now + 4) == now + 3 + 3600 * SECOND
    finally:
        mixed.close()
