"""`WorkerProcess`: one worker from the supervisor's view."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from typing import Any, Protocol

from msgspec.structs import replace

from engine import (
    DescriptorsLost,
    Refused,
    close_all,
    environment,
    send_message,
    starting,
)
from popgate_workers.announcements import Announcements
from popgate_workers.messages import (
    MOST,
    TO_SUPERVISOR,
    AskJournal,
    AskParents,
    JournalTold,
    Left,
    Listening,
    NotJoined,
    ParentsTold,
    PingWorker,
    Question,
    ServeConnection,
    Start,
    Switched,
    ToWorker,
    memory_of,
)
from popgate_workers.publication import Publication
from popgate_workers.questions import Questions
from popgate_workers.shared_counters import CounterSegment
from popgate_workers.shared_totals import SharedTotals
from popgate_workers.stand_in import StandIn

logger = logging.getLogger(__name__)

#: Seconds that a worker may take to report its last requests.
JOURNAL_TIMEOUT = 2.0
#: Seconds that a worker may take to name the clients of its last requests. A model in
#: Python waits for the answer.
PARENTS_TIMEOUT = 1.0
#: Seconds before a dead worker is started again: the first, doubled up to the last.
FIRST_PAUSE, LAST_PAUSE = 0.05, 5.0
#: A worker that has lived for this many seconds begins again with the first pause.
LIVED = 30.0
#: The least time in seconds that a worker has from its start to its first answer.
START_TIMEOUT = 60.0
#: Seconds without an answer to a ping. Then other workers take its connections.
STALLED = 1.0


class Supervisor(Protocol):
    """Interface of the supervisor (`supervisor.Workers`) for a worker."""

    @property
    def is_ending(self) -> bool: ...
    @property
    def start_message(self) -> Start: ...
    @property
    def ping_timeout(self) -> float: ...
    @property
    def totals(self) -> SharedTotals: ...
    @property
    def published(self) -> Publication: ...
    def files(self) -> bytes: ...
    def hand_over(self, connection: socket.socket) -> bool: ...
    def keep_counts(self, counters: CounterSegment) -> None: ...


class StartedWorker:
    """One process of a worker, from its start to its end.

    `on_listening` is called when the worker begins to accept connections. Raises
    OSError if the process cannot be started.
    """

    def __init__(
        self,
        workers: Supervisor,
        number: int,
        listener: socket.socket,
        on_listening: Callable[[], None],
    ) -> None:
        self._number = number
        self._on_listening = on_listening
        #: Whether the worker has begun to accept connections.
        self.is_up = False
        with ExitStack() as made:
            both = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            mine, theirs = map(made.enter_context, both)
            self.counters = made.enter_context(closing(CounterSegment.create()))
            read_end, self._owner_pipe = os.pipe()
            made.pop_all()
        self._sock = mine
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with starting():
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "popgate_workers.process"),
                        *("--control-fd", str(theirs.fileno())),
                        *("--owner-fd", str(read_end)),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), read_end],
                    env=environment(),
                )
            files, start = workers.files(), workers.start_message
            with memory_of(files) as memory:
                shared = (self.counters.memory.fd, workers.totals.memory.fd)
                message = replace(start, number=number, files=len(files))
                fds = [*shared, listener.fileno(), memory.fd]
                send_message(mine, message, fds, MOST)
        except BaseException:
            self._end_process()
            self.counters.close()
            raise
        finally:
            os.close(read_end)
            theirs.close()
        mine.setblocking(False)
        self.counters.memory.detach_fd()
        self.announcements = Announcements(workers.published, mine)
        self.questions = Questions(self.announcements.try_send)
        logger.debug("worker %d is process %d", number, self.pid)

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    async def wait(self, watch: Callable[[], Any] | None) -> int:
        """Send the changes to the worker until it ends. Return its exit code. `watch`
        runs beside that.
        """
        process = self._process
        assert process is not None
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        fd = os.pidfd_open(process.pid)
        loop.add_reader(fd, ended.set)
        loop.add_reader(self._sock.fileno(), self._receive)
        tasks = [loop.create_task(self.announcements.send_all())]
        if watch is not None:
            tasks.append(loop.create_task(watch()))
        try:
            await ended.wait()
            return process.wait()
        finally:
            for task in tasks:
                task.cancel()
            loop.remove_reader(fd)
            os.close(fd)
            loop.remove_reader(self._sock.fileno())

    def _receive(self) -> None:
        try:
            message, fds = TO_SUPERVISOR.receive(self._sock)
        except BlockingIOError:
            return
        except DescriptorsLost as lost:
            logger.warning("%s", lost)
            if isinstance(lost.message, JournalTold | ParentsTold):
                self.questions.answered(lost.message, ())
            return
        except (OSError, EOFError):
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            return
        try:
            match message:
                case Listening():
                    self.is_up = True
                    self._on_listening()
                case Switched():
                    self.announcements.switched(message.seq)
                case Left():
                    self.announcements.left(message.key)
                case NotJoined():
                    self.announcements.not_joined(message.key)
                case answer:
                    self.questions.answered(answer, fds)
        finally:
            close_all(fds)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process if it has not ended, and release all but its counters."""
        self.is_up = False
        self._end_process()
        self.questions.process_ended()
        self.announcements.process_ended()

    def _end_process(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._owner_pipe)
        self._sock.close()

    def __repr__(self) -> str:
        return f"<StartedWorker {self._number}, process {self.pid}>"


class WorkerProcess:
    """One worker: its process, and the next process after a death."""

    def __init__(
        self, workers: Supervisor, number: int, listener: socket.socket
    ) -> None:
        self.number = number
        self.restarts = 0
        self.listener = listener
        self._workers = workers
        self._stand_in = StandIn(listener, workers.hand_over)
        self._now: StartedWorker | None = None

    # -- life

    async def run(self) -> None:
        """Start the worker, and start it again whenever it has died."""
        pause = FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while not self._workers.is_ending:
            began = loop.time()
            try:
                self._now = StartedWorker(
                    self._workers, self.number, self.listener, self._stand_in.end
                )
                await self._wait(self._now)
            except OSError as error:
                logger.error("worker %d cannot start: %s", self.number, error)
            finally:
                self._clean_up()
            if self._workers.is_ending:
                return
            if loop.time() - began > LIVED:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)
            self.restarts += 1

    async def _wait(self, now: StartedWorker) -> None:
        pid = now.pid
        code = await now.wait(self._watch if self._workers.ping_timeout > 0 else None)
        if not self._workers.is_ending or code:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            logger.warning("worker %d, process %d: %s", self.number, pid, how)

    async def _watch(self) -> None:
        """End the worker if it does not answer a ping within the timeout.

        Otherwise its connections would wait forever. Its event loop, which can hang,
        answers the ping.
        """
        most = self._workers.ping_timeout
        first = max(START_TIMEOUT, most)
        # A ping has two attempts: the first may time out because this process was
        # stopped.
        while await self._answers(first / 2) or await self._answers(first / 2):
            first = most
            await asyncio.sleep(min(most / 2, STALLED))
        if not self._workers.is_ending:
            text = "worker %d has not answered a ping for %g s: ending it"
            logger.error(text, self.number, first)
            self.kill()

    async def _answers(self, seconds: float) -> bool:
        if self._workers.is_ending:
            return True
        answer = await self._ask(PingWorker, min(seconds, STALLED))
        if answer is None:
            if self._now is not None and self._now.is_up:
                self._stand_in.begin()
            answer = await self._ask(PingWorker, max(0.0, seconds - STALLED))
        if answer is not None:
            self._stand_in.end()
        return answer is not None

    def _clean_up(self) -> None:
        self._stand_in.begin()
        now, self._now = self._now, None
        if now is not None:
            now.close()
            self._workers.keep_counts(now.counters)
            now.counters.close()
        self._workers.totals.forget(self.number)

    def hand_over(self, connection: socket.socket) -> bool:
        """Let the worker serve a connection, if it can."""
        now = self._now
        if now is None or not now.is_up or self._stand_in.is_needed:
            return False
        told = now.announcements
        return told.try_send(ServeConnection(), [connection.fileno()])

    @property
    def is_alive(self) -> bool:
        return self._now is not None

    @property
    def pid(self) -> int:
        return 0 if self._now is None else self._now.pid

    @property
    def counters(self) -> CounterSegment | None:
        """Return the counters of the present process; None if there is none."""
        return None if self._now is None else self._now.counters

    def kill(self) -> None:
        if self._now is not None:
            self._now.kill()

    # -- messages

    def send(self, message: ToWorker) -> None:
        if self._now is not None:
            self._now.announcements.try_send(message)

    def mark(self, name: str) -> None:
        """Mark a model as changed."""
        if self._now is not None:
            self._now.announcements.mark(name)

    async def caught_up(self) -> None:
        """Wait until the present process has applied all changes, or has ended."""
        if self._now is not None:
            told = self._now.announcements
            await told.until(lambda: not told.is_behind)

    async def released(self, runners: Sequence[object], seconds: float) -> bool:
        """Wait until the worker runs none of these runners. Return whether it does so
        in time.
        """
        now = self._now
        return now is None or await now.announcements.released(runners, seconds)

    async def ask_journal(self) -> Any:
        """Return its journal of the last requests; None after a timeout."""
        return await self._ask(AskJournal, JOURNAL_TIMEOUT)

    async def ask_parents(
        self, numbers: Iterable[int]
    ) -> Sequence[tuple[int, str, str, str]]:
        """Return the requests with these numbers that the worker made, if they still
        exist.

        Those of a worker that has ended do not. Raises Refused if it does not answer.
        """
        wanted, asked = tuple(numbers), self._now
        found = await self._ask(lambda n: AskParents(n, wanted), PARENTS_TIMEOUT)
        if found is None and asked is not None and asked is self._now:
            raise Refused(
                f"HTTP worker {self.number} has not described the requests of a run "
                f"within {PARENTS_TIMEOUT:g} s; send the request again"
            )
        return found or ()

    async def _ask(self, question: Callable[[int], Question], seconds: float) -> Any:
        if self._now is None:
            return None
        return await self._now.questions.ask(question, seconds)

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.number}, process {self.pid}>"
