"""Answers to Python models that are large, or that cannot be sent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from app.limits import Limits
from app.serving.calls.parent_request import ClientRequest, RemoteParents
from app.serving.table import ModelTable
from engine import EngineBug, ExecutionFailed, Refused, SharedMemory, Tensor
from engine.transport.messages import MAX_MESSAGE, close_all, send
from popgate_python_interface import PresentRun
from popgate_python_messages import call_messages
from popgate_python_messages.call_messages import (
    INLINE,
    TO_MODEL,
    Answer,
    CallFailed,
    CallGivenUp,
    CallOutputs,
    CallSocket,
    ClientRequestsAsked,
    ClientRequestsTold,
    ModelCall,
    ReadyAsked,
    ReadyTold,
    RouteLeft,
    RouteOffered,
    RouteWithdrawn,
    Tensors,
)
from popgate_python_models.model_calls import PythonModelCalls
from popgate_python_worker.calls.call_client import CallClient
from tests.app.python_sources import write
from tests.app.served import ServedGateway
from tests.support import WAIT, no_descriptors

#: A model that says how many characters its clients' parameters have.
TOLD = """
class Told:
    inputs = {"x": "INT32[-1]"}
    outputs = {"length": "INT32[-1]"}
    batching = True

    def load(self, context):
        self.context = context

    def __call__(self, x):
        found = [len(one.get("text", "")) for one in self.context.parameters]
        return {"length": found or [0] * len(x)}
"""
LARGE: tuple[ClientRequest, ...] = tuple((f"id {n}", "", "x" * 4096) for n in range(64))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGateway]:
    write(tmp_path, "told", TOLD)
    with ServedGateway(tmp_path, "--allow-python") as gateway:
        yield gateway.wait_ready()


def test_parameters_may_be_longer_than_a_message(served: ServedGateway) -> None:
    for length in (250_000, 3):
        body = {"inputs": {"x": [1]}, "parameters": {"text": "é" * length}}
        response = served.client.post("/v1/models/told/infer", json=body)
        assert response.status_code == 200, response.text
        assert response.json()["outputs"][0]["data"] == [length]


class Others(RemoteParents):
    """Requests of other processes. Number 1 is large, and others raise an error."""

    async def client_requests(
        self, numbers: Iterable[int]
    ) -> Mapping[int, ClientRequest]:
        (number,) = numbers
        if number == 1:
            return {1: ("", "", "x" * MAX_MESSAGE)}
        raise Refused("no answer") if number == 2 else KeyError("three")


class Process:
    """The end of a model's process."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.settimeout(WAIT)

    async def ask(self, question: Any, fds: Sequence[int] = ()) -> Answer:
        send(self._sock, question, fds)
        found, fds = await asyncio.to_thread(TO_MODEL.receive, self._sock)
        close_all(fds)
        assert isinstance(found, Answer)
        assert found.number == question.number
        return found

    async def failure(self, number: int) -> Exception:
        """Ask for the clients of a request that cannot be told."""
        found = await self.ask(ClientRequestsAsked(number, (number,)))
        assert isinstance(found, CallFailed)
        return found.report.to_error()


def with_process(check: Callable[[Process], Awaitable[None]]) -> None:
    async def run() -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        table = ModelTable(Limits())
        calls = PythonModelCalls(table, lambda name: (), Others(), WAIT, WAIT)
        calls.open()
        calls.attach("caller", lambda number: None, mine)
        with theirs:
            await check(Process(theirs))
        calls.close()

    asyncio.run(run())


def test_an_answer_that_cannot_be_sent_fails_its_question_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(process: Process) -> None:
        error = await process.failure(1)
        assert isinstance(error, ExecutionFailed)
        assert "ClientRequestsTold has " in str(error)
        found = await process.ask(ReadyAsked(5, "other", ""))
        assert found == ReadyTold(5, ready=False)

    monkeypatch.setattr(call_messages, "INLINE", 1 << 30)
    with_process(check)


def test_a_call_without_room_for_its_descriptors_fails_alone() -> None:
    async def check(process: Process) -> None:
        inputs, fds = Tensors.of({"x": Tensor.from_numpy(np.zeros(INLINE))})
        call = ModelCall(6, "other", "", 0, inputs, None, {})
        with no_descriptors():
            found = await process.ask(call, fds)
            assert isinstance(found, CallFailed)
            assert isinstance(found.report.to_error(), Refused)
            error = await process.failure(1)
            assert isinstance(error, Refused)
            assert "no room for it" in str(error)
        found = await process.ask(ReadyAsked(5, "other", ""))
        assert found == ReadyTold(5, ready=False)
        close_all(fds)

    with_process(check)


def test_a_call_whose_inputs_find_no_memory_fails_alone() -> None:
    async def check(process: Process) -> None:
        with SharedMemory.create("test", 1 << 30) as memory:
            inputs = Tensors(place=(0, 1 << 30))
            call = ModelCall(6, "other", "", 0, inputs, None, {})
            with no_memory():
                found = await process.ask(call, [memory.fd])
        assert isinstance(found, CallFailed)
        error = found.report.to_error()
        assert isinstance(error, Refused)
        assert "Cannot allocate memory" in str(error)
        found = await process.ask(ReadyAsked(5, "other", ""))
        assert found == ReadyTold(5, ready=False)

    with_process(check)


@contextlib.contextmanager
def no_memory() -> Iterator[None]:
    """Lets this process have little more memory until the end of the block."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (512 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_stream_ends_with_a_response_that_finds_no_memory(client: Client) -> None:
    stream = client.client.stream(("other", ""), {}, {})
    with SharedMemory.create("test", 1 << 30) as memory, no_memory():
        told = CallOutputs(stream.number, Tensors(place=(0, 1 << 30)), more=True)
        client.owner.send(told, [memory.fd])
        with pytest.raises(Refused, match="no room for the answer"):
            list(stream)
    assert isinstance(client.owner.receive()[0], ModelCall)
    assert client.owner.receive()[0] == CallGivenUp(stream.number)


def test_a_call_for_which_no_thread_starts_fails_alone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", fail)
        with pytest.raises(Refused, match="can't start new thread"):
            client.begin()
    call = client.begin()
    client.owner.answer(call.number, {})
    call.wait()
    assert call.outputs() == {}


def test_a_withdrawn_route_whose_offer_was_lost_ends_no_call(client: Client) -> None:
    client.owner.send(RouteWithdrawn(1))
    call = client.begin()
    client.owner.answer(call.number, {})
    call.wait()
    assert call.outputs() == {}


def test_a_call_with_outputs_of_a_wrong_type_keeps_no_descriptor(
    client: Client,
) -> None:
    large = {"x": np.zeros(INLINE)}
    before = os.listdir("/proc/self/fd")
    with pytest.raises(TypeError, match="not iterable"):
        client.client.begin(("other", ""), large, {"outputs": 5})
    assert os.listdir("/proc/self/fd") == before


def test_a_question_that_fails_is_answered() -> None:
    async def check(process: Process) -> None:
        assert isinstance(await process.failure(2), Refused)
        error = await process.failure(3)
        assert isinstance(error, ExecutionFailed)
        assert "three" in str(error)

    with_process(check)


class Client:
    """A model's client, and the owner's end."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.owner, self.client = (
            CallSocket(mine),
            CallClient(theirs, PresentRun(), nothing_runs),
        )

    def begin(self) -> Any:
        return self.client.begin(("other", ""), {}, {})

    def close(self) -> None:
        self.client.close()
        self.owner.close()


def nothing_runs() -> None:
    """Return the run in progress: none."""


@pytest.fixture
def client() -> Iterator[Client]:
    found = Client()
    yield found
    found.close()


def test_an_answer_that_cannot_be_read_fails_its_call_alone(client: Client) -> None:
    broken, sound = client.begin(), client.begin()
    table = msgpack.packb([("y", "NO_TYPE", [1], 0, 0)])
    with SharedMemory.create("test", len(table)) as memory:
        memory.view[: len(table)] = table
        told = CallOutputs(broken.number, Tensors(place=(0, len(table))))
        client.owner.send(told, [memory.fd])
    client.owner.answer(sound.number, {"y": Tensor.from_numpy(np.array([1.0]))})
    sound.wait()
    assert sound.outputs()["y"] == [1.0]
    broken.wait()
    with pytest.raises(EngineBug, match="NO_TYPE"):
        broken.outputs()


def test_a_model_without_room_for_descriptors_loses_one_answer(client: Client) -> None:
    lost, sound = client.begin(), client.begin()
    large = {"y": Tensor.from_numpy(np.zeros(INLINE))}
    told, fds = Tensors.of(large)
    with no_descriptors():
        client.owner.send(CallOutputs(lost.number, told, more=True), fds)
        lost.wait()
        offer = RouteOffered(9, "other", "", (), {}, 1.0, has_log=True)
        client.owner.send(offer, fds)
        client.owner.answer(sound.number, {"y": Tensor.from_numpy(np.array([1.0]))})
        sound.wait()
    close_all(fds)
    with pytest.raises(Refused, match="no descriptors are left for CallOutputs"):
        lost.outputs()
    assert sound.outputs()["y"] == [1.0]
    came = [client.owner.receive()[0] for _ in range(4)]
    assert came[2:] == [CallGivenUp(lost.number), RouteLeft(9)]
    client.owner.answer(client.begin().number, large)


@pytest.mark.parametrize(("requests", "fds"), [(LARGE, 1), (LARGE[:3], 0)])
def test_requests_of_a_batch_travel(
    requests: tuple[ClientRequest, ...], fds: int
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = len(os.listdir("/proc/self/fd"))
    with theirs:
        CallSocket(ours).answer(7, requests)
        ours.close()
        told, found = TO_MODEL.receive(theirs)
        assert isinstance(told, ClientRequestsTold)
        assert len(found) == fds
        assert told.read(found) == requests
        close_all(found)
        assert len(os.listdir("/proc/self/fd")) == before - 1


def test_an_error_of_any_length_travels(client: Client) -> None:
    call = client.begin()
    client.owner.answer(call.number, ExecutionFailed("\U0001f600" * MAX_MESSAGE))
    call.wait()
    with pytest.raises(ExecutionFailed, match=r"^\U0001f600+$"):
        call.outputs()
