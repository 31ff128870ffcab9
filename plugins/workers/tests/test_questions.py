"""Questions to a worker, whose answers may be missing."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from app.limits import DEFAULT_LIMITS
from app.observe.journal import Journal
from app.observe.log import LogControl
from app.serving.keys import Keys
from engine import Refused, SharedMemory, send_message
from popgate_workers import worker as worker_module
from popgate_workers import worker_process
from popgate_workers.announcements import Announcements
from popgate_workers.messages import (
    MOST,
    TO_SUPERVISOR,
    AskJournal,
    AskParents,
    JournalTold,
    Listening,
    ParentsTold,
    PingWorker,
    Pong,
    SetAccess,
    ToWorker,
)
from popgate_workers.questions import Questions
from popgate_workers.shared_counters import CounterSegment
from popgate_workers.worker_process import StartedWorker, WorkerProcess
from tests.support import WAIT, no_descriptors


class Silent:
    """A process of a worker that answers nothing."""

    def __init__(self) -> None:
        self.asked: list[ToWorker] = []
        self.is_asked = asyncio.Event()
        self.questions = Questions(self._ask)

    def _ask(self, question: ToWorker) -> None:
        self.asked.append(question)
        self.is_asked.set()


class Worker(WorkerProcess):
    """A worker with such a process, which can end."""

    def __init__(self) -> None:
        supervisor: Any = SimpleNamespace(hand_over=None)
        with socket.socket() as listener:
            super().__init__(supervisor, 0, listener)
        self.process = Silent()
        self._now: Any = self.process

    def end(self) -> None:
        self._now = None
        self.process.questions.process_ended()


def test_a_worker_that_does_not_answer_has_not_lost_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_process, "PARENTS_TIMEOUT", 0.001)
    with pytest.raises(Refused, match="HTTP worker 0 has not described the requests"):
        asyncio.run(Worker().ask_parents([5]))


def test_requests_of_a_worker_that_has_ended_exist_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check() -> None:
        worker = Worker()
        answer = asyncio.create_task(worker.ask_parents([5, 6]))
        await worker.process.is_asked.wait()
        assert worker.process.asked == [AskParents(1, (5, 6))]
        worker.end()
        assert await answer == ()
        assert await worker.ask_parents([7]) == ()

    monkeypatch.setattr(worker_process, "PARENTS_TIMEOUT", WAIT)
    asyncio.run(check())


def test_a_message_to_a_worker_that_is_too_long_is_not_sent() -> None:
    async def check() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        published: Any = SimpleNamespace(names=list)
        with ours, theirs:
            told = Announcements(published, ours)
            assert not told.try_send(SetAccess("x" * MOST))
            assert told.try_send(SetAccess("x"))

    asyncio.run(check())


def test_a_worker_outlives_a_message_that_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    counters, keys = CounterSegment.create(), Keys(None)
    facts = DEFAULT_LIMITS, keys, LogControl("info"), Journal(), WAIT
    with ours, theirs:
        worker = worker_module.Worker(0, ours, counters, *facts)
        with monkeypatch.context() as patch:
            patch.setattr(worker_module, "MOST", 1)
            worker.say_listening()
        worker.say_listening()
        assert TO_SUPERVISOR.receive(theirs) == (Listening(), [])
    counters.close()


@pytest.mark.parametrize("kind", [JournalTold, ParentsTold])
def test_a_document_that_loses_its_descriptor_is_no_answer(
    kind: type[JournalTold | ParentsTold],
) -> None:
    async def check() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process: Any = SimpleNamespace(_sock=ours, questions=Questions(lambda _: None))
        with ours, theirs, SharedMemory.create("document", 1) as memory:
            ours.setblocking(False)
            asked = asyncio.create_task(process.questions.ask(AskJournal, WAIT))
            await asyncio.sleep(0)
            send_message(theirs, kind(1, 1), (memory.fd,), MOST)
            with no_descriptors():
                StartedWorker._receive(process)
            assert await asked is None

    asyncio.run(check())


def test_a_worker_without_descriptors_outlives_a_question(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    counters, keys = CounterSegment.create(), Keys(None)
    facts = DEFAULT_LIMITS, keys, LogControl("info"), Journal(), WAIT
    ours.setblocking(False)
    with ours, theirs, closing(counters):
        worker = worker_module.Worker(0, ours, counters, *facts)
        send_message(theirs, AskJournal(1), (), MOST)
        send_message(theirs, PingWorker(2), (), MOST)
        with no_descriptors():
            worker.receive_all()
        assert TO_SUPERVISOR.receive(theirs) == (Pong(2), [])
        assert "the supervisor cannot be answered" in caplog.text
