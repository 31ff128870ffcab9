"""Prefetching: what programs are certain to read, asked for before they need it.

Covers: plugins/model_runtime/src/popgate_session_worker/prefetch.py,
plugins/model_runtime/src/popgate_session_worker/host_streams.py.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import build_popef
import numpy as np
import pytest

from engine import Cancelled, Device, ExecutionFailed
from engine.programs.executable import (
    Executable,
    Node,
    ProgramCall,
    Repeat,
    Steps,
    StreamIn,
    Switch,
)
from engine.programs.model_data import ModelData
from engine.transport.messages import send
from engine.transport.shared_memory import SharedMemory
from popef_io import Model, load_model
from popgate_session_messages import (
    FROM_DEVICE,
    Abort,
    Ahead,
    AnchorBinding,
    Data,
    DataLocation,
    FromDevice,
    Need,
    Prefetch,
    RunEnded,
)
from popgate_session_worker.host_streams import HostStreams
from popgate_session_worker.prefetch import upcoming_reads
from popgate_sessions import Session, SessionConfig
from tests.engine import models

WHAT = ("read", "written")
A, B, C = (StreamIn(name, name) for name in "abc")


def foreseen(*programs: Node, streams: str = "abc", limit: int = 20) -> str:
    executable = Executable(programs=dict(enumerate(programs)))
    reads = upcoming_reads(executable, range(len(programs)), frozenset(streams))
    return "".join(islice(reads, limit))


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        ([A], "a"),
        ([Steps((A, Repeat(3, Steps((B, C))), A))], "abcbcbca"),
        ([A, B], "ab"),
        ([Steps((A, Switch("a", {0: B, 1: C}), C))], "a"),
        ([Steps((A, Switch("a", {}))), B], "a"),
        ([ProgramCall(1), B], "bb"),
        ([Repeat(2, ProgramCall(1)), Switch("x", {})], ""),
        ([Repeat(0, A), B], "b"),
        ([Repeat(1 << 31, Steps((A, B)))], "ab" * 10),
        ([Repeat(1 << 38, Repeat(0, A)), B], "b"),
        (
            [
                B,
                *(Steps((ProgramCall(n), ProgramCall(n))) for n in range(2, 64)),
                Repeat(0, A),
            ],
            "b",
        ),
    ],
)
def test_what_is_certain(programs: list[Node], expected: str) -> None:
    assert foreseen(*programs) == expected


def test_a_long_repeat_that_reads_nothing_else_is_passed_over() -> None:
    assert foreseen(Steps((Repeat(1 << 31, A), B)), streams="b") == "b"


def test_a_program_that_does_not_exist() -> None:
    assert list(upcoming_reads(Executable(programs={0: A}), [0, 7, 0], "a")) == ["a"]


# -- the device's side, with a host made by hand


class Ends:
    """Streams of simple.popef, and the socket of their host."""

    def __init__(self, model: Model, look_ahead: int) -> None:
        device, self.host = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.host.settimeout(30)
        anchors = model.metadata.anchors
        self.streams = HostStreams(device, anchors, ModelData(model, {}), look_ahead)
        self.streams.bind(AnchorBinding((0, 1, 3), (0, 1), (), (2,)))
        self._device = device
        self._segments: dict[int, SharedMemory] = {}

    def heard(self) -> FromDevice:
        message, fds = FROM_DEVICE.receive(self.host)
        for (number, size), fd in zip(message.segments, fds, strict=True):
            self._segments[number] = SharedMemory.attach(fd, size)
        return message

    def ended(self) -> RunEnded:
        """The message of the end of a run."""
        self.streams.send(RunEnded(self.streams.prefetches()))
        message = self.heard()
        assert isinstance(message, RunEnded)
        return message

    def prefetches(self) -> tuple[Prefetch, ...]:
        """What the streams ask to prefetch, told at the end of a run."""
        return self.ended().prefetches

    def ahead(self) -> Ahead:
        message = self.heard()
        assert isinstance(message, Ahead)
        return message

    def need(self) -> Need:
        message = self.heard()
        assert isinstance(message, Need)
        return message

    def give(self, anchor: int, location: DataLocation, value: float) -> None:
        number, offset, room = location
        memory = self._segments[number].view[offset : offset + room]
        np.frombuffer(memory, np.float32)[:12] = value
        send(self.host, Data(anchor, 48, (3, 4)))

    def close(self) -> None:
        self.host.close()
        self._device.close()
        for memory in self._segments.values():
            memory.close()


@pytest.fixture(scope="module")
def simple(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(build_popef.build_simple(tmp_path_factory.mktemp("m")))


@pytest.fixture
def ends(request: pytest.FixtureRequest, simple: Model) -> Iterator[Ends]:
    ends = Ends(simple, request.param)
    yield ends
    ends.close()


def reads(*handles: str) -> Iterator[str]:
    return iter(handles)


@pytest.mark.parametrize("ends", [2], indirect=True)
def test_so_many_reads_are_asked_for_ahead_of_need(ends: Ends) -> None:
    a, b = "h2d_tensor_A", "h2d_tensor_B"
    ends.streams.begin(reads(a, b, a, b))
    first = ends.prefetches()
    assert [anchor for anchor, _ in first] == [0, 1]
    for number, (anchor, place) in enumerate(first):
        ends.give(anchor, place, number)
    # Both are there: no read asks for them, each makes room for one more prefetch.
    assert (ends.streams.read(a) == 0).all()
    second = ends.ahead()
    assert second.consumed == (0,)
    assert [anchor for anchor, _ in second.prefetches] == [0]
    assert (ends.streams.read(b) == 1).all()
    third = ends.ahead()
    assert third.consumed == (1,)
    assert [anchor for anchor, _ in third.prefetches] == [1]
    ends.give(0, second.prefetches[0].location, 5)
    assert (ends.streams.read(a) == 5).all()
    assert ends.ended() == RunEnded((), consumed=(0,))


@pytest.mark.parametrize("ends", [0], indirect=True)
def test_zero_means_never_ahead(ends: Ends) -> None:
    assert ends.streams.foreseeable() == frozenset()


@pytest.mark.parametrize("ends", [3], indirect=True)
def test_the_first_read_of_a_run_says_what_else_it_wants(ends: Ends) -> None:
    ends.streams.begin(reads("h2d_tensor_A", "h2d_tensor_B"))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ends.streams.read, "h2d_tensor_A")
        message = ends.need()
        assert (message.anchor, message.location) == (0, None)
        assert [anchor for anchor, _ in message.prefetches] == [0, 1]
        ends.give(0, message.prefetches[0].location, 4)
        assert (future.result(30) == 4).all()


@pytest.mark.parametrize("ends", [5], indirect=True)
def test_what_has_come_is_taken_without_asking(ends: Ends) -> None:
    a, b = "h2d_tensor_A", "h2d_tensor_B"
    ends.streams.begin(reads(a, b, a))
    (_, first), (_, second), (_, third) = ends.prefetches()
    for anchor, place, value in ((1, second, 1), (0, first, 2), (0, third, 3)):
        ends.give(anchor, place, value)
    assert (ends.streams.read(b) == 1).all()
    kept = ends.streams.read(a)
    assert (ends.streams.read(a) == 3).all()
    assert (kept == 2).all()  # lies in a place of its own
    assert ends.ended().consumed == (1, 0, 0)  # told with the next message


@pytest.mark.parametrize("ends", [5], indirect=True)
def test_what_has_not_come_is_waited_for(ends: Ends) -> None:
    ends.streams.begin(reads("h2d_tensor_A"))
    ((anchor, place),) = ends.prefetches()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ends.streams.read, "h2d_tensor_A")
        assert ends.heard() == Need(0, None)
        ends.give(anchor, place, 9)
        assert (future.result(30) == 9).all()


@pytest.mark.parametrize("ends", [5], indirect=True)
def test_the_host_may_end_a_run(ends: Ends) -> None:
    send(ends.host, Abort("a callback failed"))
    with pytest.raises(Cancelled, match="a callback failed"):
        ends.streams.read("h2d_tensor_A")
    ends.host.close()
    with pytest.raises(Cancelled, match="ended"):
        ends.streams.read("h2d_tensor_A")


# -- whole runs


@pytest.mark.parametrize("look_ahead", ["0", "1", "3", "unlimited"])
def test_results_are_the_same(
    tmp_path: Path, shared_device: Device, look_ahead: str
) -> None:
    config = SessionConfig(max_look_ahead=look_ahead)
    rows = build_popef.BATCH * build_popef.ITERATIONS
    rng = np.random.default_rng(7)
    with Session(build_popef.build_iterations(tmp_path), config) as session:
        session.bind_to_device(shared_device)
        queues = session.create_queue_manager(64)
        sent, got = [], []
        left = 5 * rows
        while left:
            size = min(left, int(rng.integers(1, 9)))
            left -= size
            sent.append(rng.random((size, 4), np.float32))
            got.append(np.empty((size, 4), np.float32))
            queues.input_queue("input").enqueue(sent[-1])
            queues.output_queue("output").enqueue(got[-1])
        for _ in range(5):
            assert session.run_main_programs(timeout=30)
        for data, out in zip(sent, got, strict=True):
            assert np.allclose(out, data * 2 + 1)


def test_zero_reads_each_iteration_after_the_results_of_the_last(
    tmp_path: Path, shared_device: Device
) -> None:
    config = SessionConfig(max_look_ahead="0")
    path = models.gather(tmp_path / "m.popef", batch_size=2, iterations=3)
    with Session(path, config) as session:
        session.bind_to_device(shared_device)
        queues = session.create_queue_manager(16)
        events: list[str] = []
        for number in range(6):
            queues.input_queue("index").enqueue(
                np.full(2, number, np.int64), partial(events.append, f"read {number}")
            )
            queues.output_queue("output").enqueue(
                np.empty((2, 2), np.float32),
                partial(events.append, f"written {number}"),
            )
        for _ in range(2):
            assert session.run_main_programs(timeout=30)
        assert events == [f"{what} {n}" for n in range(6) for what in WHAT]


@pytest.mark.parametrize("look_ahead", ["0", "unlimited"])
def test_what_a_failed_run_did_not_get_to_is_given_again(
    tmp_path: Path, shared_device: Device, look_ahead: str
) -> None:
    """The second of four iterations fails: the third's data are there for the next."""
    path = models.gather(tmp_path / "m.popef", batch_size=2, iterations=4)
    with Session(path, SessionConfig(max_look_ahead=look_ahead)) as session:
        session.bind_to_device(shared_device)
        queues = session.create_queue_manager(16)
        consumed: list[int] = []
        outs = []
        for number in (0, 99, 2, 3, 4, 5):
            out = np.empty((2, 2), np.float32)
            index = np.full(2, number, np.int64)
            queues.input_queue("index").enqueue(
                index, read_complete_callback=partial(consumed.append, number)
            )
            outs.append((number, index, out))
        for number, _, out in outs:
            if number != 99:
                queues.output_queue("output").enqueue(out)
        with pytest.raises(ExecutionFailed, match="99"):
            session.run_main_programs(timeout=30)
        assert consumed == [0, 99]
        assert session.run_main_programs(timeout=30)
        assert consumed == [0, 99, 2, 3, 4, 5]
        for number, _, out in outs:
            if number != 99:
                assert out.tolist() == [[2 * number, 2 * number + 1]] * 2


@pytest.mark.parametrize("ends", [9], indirect=True)
def test_only_what_may_be_there_is_foreseen(ends: Ends) -> None:
    assert ends.streams.foreseeable() == {"h2d_tensor_A", "h2d_tensor_B"}
    ends.streams.bind(
        AnchorBinding((0, 1, 3), (1,), (), (2,))
    )  # tensor_A is a callback
    assert ends.streams.foreseeable() == {"h2d_tensor_B"}
