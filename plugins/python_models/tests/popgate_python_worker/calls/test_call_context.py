"""What a call says of those for whom it is made."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from engine.config import weighted
from engine.errors import DeadlineExceeded
from engine.transport.channel import REQUEST, Channel, ChannelLayout
from engine.transport.link import Link
from engine.transport.shared_memory import PAGE
from engine.worker.batch import BatchEntry, RunningBatch
from engine.worker.client_channel import ClientChannel
from popgate_python_interface.model import PresentRun
from popgate_python_messages.call_messages import CallSocket, ModelCall
from popgate_python_worker.calls.call_client import CallClient

LAYOUT = ChannelLayout(4, (PAGE,), (PAGE,))


class Run:
    """A run of requests that stand in these lines: level, weight and deadline."""

    def __init__(self, *lines: tuple[int, int, int]) -> None:
        link = Link.create()
        self._channels = []
        entries = []
        for number, (level, weight, deadline) in enumerate(lines):
            channel = Channel.create("test", LAYOUT)
            self._channels.append(channel)
            REQUEST.pack_into(
                channel.view, channel.request_at(0), number, 1, 0, deadline, 0
            )
            client = ClientChannel(number, channel, link, level, weight)
            entries.append(BatchEntry(client, channel.request_at(0), number, 1, 0, []))
        self.batch = RunningBatch(None, entries)
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.owner = CallSocket(mine)
        self.calls = CallClient(theirs, PresentRun(), lambda: self.batch)
        self._link = link

    def call(self, **options: float) -> ModelCall:
        self.calls.begin(("other", ""), {"x": [1.0]}, options)
        found, inputs = self.owner.receive()
        assert list(inputs) == ["x"]
        assert isinstance(found, ModelCall)
        return found

    def close(self) -> None:
        self.calls.close()
        self.owner.close()
        for channel in self._channels:
            channel.close()
        self._link.close()


@pytest.fixture
def soon() -> int:
    return time.monotonic_ns() + 10**12


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


@pytest.mark.parametrize(
    ("lines", "priority"),
    [
        ([(0, 0)], 0),
        ([(2, 0)], 2),
        ([(2, 3)], weighted(2, 3)),
        ([(3, 1), (2, 5), (2, 0)], weighted(2, 5)),
    ],
)
def test_a_call_stands_in_the_line_of_the_highest_request(
    runs: list[Run], lines: list[tuple[int, int]], priority: int
) -> None:
    run = Run(*((level, weight, 0) for level, weight in lines))
    runs.append(run)
    call = run.call()
    assert call.priority == priority
    assert call.requests == tuple(range(len(lines)))
    assert call.deadline_ns == 0


def test_a_call_has_the_last_deadline_or_its_own(runs: list[Run], soon: int) -> None:
    run = Run((0, 0, soon), (0, 0, soon + 5))
    runs.append(run)
    assert run.call().deadline_ns == soon + 5
    assert run.call(timeout=1.0).deadline_ns < soon
    late = Run((0, 0, 1))
    runs.append(late)
    with pytest.raises(DeadlineExceeded):
        late.call()
