"""When a replica starts a batch, and which requests it counts on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.batch import AnchorTable, ClientChannel
from engine.batch_plan import BatchPlan
from engine.channel import REQUEST, Channel, ChannelLayout
from engine.link import Link
from engine.replica import BatchingPolicy, Replica
from engine.shared_memory import PAGE

DELAY = 1_000


class Written:
    """A replica that waits for four rows, with real rings and nothing to run."""

    def __init__(self) -> None:
        self.link = Link.create()
        self.channel = Channel.create("test", ChannelLayout(8, (PAGE,), (PAGE,)))
        self.client = ClientChannel(0, self.channel, self.link)
        nothing: Any = None
        self.replica = Replica(
            0,
            "m",
            nothing,
            (),
            AnchorTable((), (), nothing),
            BatchPlan(0, 0, 0, 8, (), ()),
            BatchingPolicy(max_rows=8, delay_ns=DELAY, preferred=(4,)),
            nothing,
        )
        self.replica.add(self.client)

    def write(self, submitted: int) -> None:
        """Put a request of one row into the ring, not yet announced."""
        slot = self.channel.requests.try_write_lock()
        at = self.channel.request_at(slot)
        REQUEST.pack_into(self.channel.view, at, submitted, 1, 0, 0, submitted)
        self.channel.requests.write_complete()

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


def test_a_request_not_yet_announced_is_not_counted_on(written: Written) -> None:
    """A batch is taken from what was announced: were it due for a row more than that,
    it would start short, and the row behind it wait for three others."""
    for number in range(4):
        written.write(100 + number)
    written.client.pending = 3
    assert written.replica.due_ns(500) == 100 + DELAY
    written.client.pending = 4
    assert written.replica.due_ns(500) == 500
