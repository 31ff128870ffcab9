"""What a call says of those for whom it is made."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.config import weighted
from engine.errors import DeadlineExceeded, InvalidInput
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

    def call(self, **options: Any) -> ModelCall:
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


@pytest.mark.parametrize("timeout", [float("inf"), 1e300])
def test_a_call_may_have_any_time(runs: list[Run], soon: int, timeout: float) -> None:
    runs += Run((0, 0, soon)), Run((0, 0, 0))
    assert runs[0].call(timeout=timeout).deadline_ns == soon
    assert runs[1].call(timeout=timeout).deadline_ns > soon


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timout": 1.0}, "no option 'timout'; it has timeout, outputs, parameters"),
        ({"outputs": "y"}, "outputs of a call must be a list of names, got str"),
        ({"parameters": [1]}, "parameters of a call must be a mapping, got list"),
    ],
)
def test_a_call_has_no_other_options(
    runs: list[Run], options: dict[str, Any], words: str
) -> None:
    runs.append(Run((0, 0, 0)))
    with pytest.raises(TypeError, match=words):
        runs[0].call(**options)
    with pytest.raises(TypeError, match=words):
        runs[0].calls.stream(("other", ""), {"x": [1.0]}, options)


def test_parameters_of_a_call_may_be_numbers_of_numpy(runs: list[Run]) -> None:
    runs.append(Run((0, 0, 0)))
    given = {"a": np.int64(7), "b": np.bool_(True), "c": np.float32(0.5)}
    found = runs[0].call(parameters=given).parameters
    assert found == {"a": 7, "b": True, "c": 0.5}
    assert [type(value) for value in found.values()] == [int, bool, float]


@pytest.mark.parametrize("value", [object(), 1 << 70])
def test_parameters_that_no_message_holds_fail_the_call(
    runs: list[Run], value: object
) -> None:
    runs.append(Run((0, 0, 0)))
    with pytest.raises(InvalidInput, match="the call cannot be sent"):
        runs[0].call(parameters={"a": value})
    assert repr(runs[0].calls) == "<CallClient 0 under way>"
