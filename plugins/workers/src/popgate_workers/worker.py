"""`Worker`: a process that accepts connections and runs models that its supervisor has
loaded.

It owns its connections, their requests, and its own links and channels to the devices,
so batches mix the requests of all workers. It runs plain inference with known models.
All other requests go to the supervisor (relay.py), which knows everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

import msgpack

from app.background import DaemonPool
from app.limits import Limits
from app.observe.journal import Journal
from app.observe.log import LogControl, lines_dropped
from app.observe.processes import OwnNumbers
from app.serving.absent import Absent
from app.serving.keys import Keys
from app.serving.runner import RequestScheduler
from app.serving.table import ModelEntry, ModelTable
from engine import (
    DescriptorsLost,
    ExecutionFailed,
    JoinedRunner,
    MessageTooLong,
    send_message,
)
from popgate_workers.joined_devices import JoinedDevices
from popgate_workers.messages import (
    MOST,
    TO_WORKER,
    AddNestedCall,
    AskJournal,
    AskParents,
    Drain,
    JoinDevice,
    JournalTold,
    Left,
    Listening,
    ModelChanged,
    NotJoined,
    ParentsTold,
    PingWorker,
    Pong,
    Question,
    ServeConnection,
    SetAccess,
    SetDrained,
    SetLog,
    Switched,
    ToSupervisor,
    ToWorker,
    memory_of,
    nested_call_of,
)
from popgate_workers.shared_counters import CounterSegment
from popgate_workers.shared_runners import LocalRunner, SharedRunners, can_run
from popgate_workers.worker_paths import WorkerPaths

logger = logging.getLogger(__name__)

#: Seconds between two updates of the gauges of requests in flight.
GAUGES_TICK = 0.25
#: Seconds between checks of the key file.
KEYS_LOOK = 1.0


class WorkersServer(Protocol):
    """The server of a worker's connections."""

    def take_over(self, connection: socket.socket) -> None: ...
    def stop(self, exit_code: int) -> None: ...


class Worker:
    """The models and devices of one worker process. For its event loop's thread.

    `sock` leads to the supervisor, whose end is the worker's (process.py).
    `number` is the worker's place among its siblings, and `connections` are its open
    connections.
    """

    def __init__(
        self,
        number: int,
        sock: socket.socket,
        counters: CounterSegment,
        limits: Limits,
        keys: Keys,
        logging_: LogControl,
        journal: Journal,
        drain_timeout: float,
        connections: Collection[Any] = (),
        *,
        is_drained: bool = False,
    ) -> None:
        self.table = ModelTable(
            limits,
            absent=_Elsewhere(self),
            keeps_nested_calls=journal.spans is not None,
        )
        self.keys = keys
        self.journal = journal
        #: Whether every answer must be its connection's last.
        self.is_drained = is_drained
        self._server: WorkersServer | None = None
        self._sock = sock
        self._counters = counters
        self._logging = logging_
        # Calls on behalf of a request must be reported before it ends.
        first = self.receive_all if self.table.keeps_nested_calls else None
        self._devices = JoinedDevices(first)
        lack = partial(self._send, NotJoined(""))
        self._runners = SharedRunners(
            number, self.table, counters, self._devices, drain_timeout, lack
        )
        self.paths = WorkerPaths(self.table, keys, connections, drain_timeout)
        #: The published versions of each model: entry and runner by key, and the
        #: default.
        self._models: dict[str, dict[int, tuple[ModelEntry, LocalRunner]]] = {}
        self._defaults: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = connections

    # -- life

    def start(self, server: WorkersServer | None = None) -> None:
        """Handle the supervisor's messages from now on. `server` obeys those about
        connections.
        """
        self._server = server
        loop = asyncio.get_running_loop()
        loop.add_reader(self._sock.fileno(), self._receive)
        self._begin(self._tell_gauges())
        if self.keys.path is not None:
            self._begin(self._watch_keys())

    async def stop(self) -> None:
        """Leave all devices."""
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        for task in list(self._tasks):
            task.cancel()
        self._show_gauges()
        await self.abort()
        self._sock.close()

    def say_listening(self) -> None:
        """Report that connections are accepted from now on."""
        self._send(Listening())

    async def abort(self) -> None:
        """Fail every request in flight."""
        self._devices.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- messages from the supervisor

    def receive_all(self) -> None:
        """Process the messages that the supervisor has sent so far."""
        while self._receive():
            pass

    def _receive(self) -> bool:
        """Handle one message, if there is one; return whether there was."""
        try:
            message, fds = TO_WORKER.receive(self._sock, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except DescriptorsLost as lost:
            logger.warning("%s", lost)
            if isinstance(lost.message, JoinDevice):
                self._send(NotJoined(lost.message.key))
            return True
        except (OSError, EOFError):
            # The supervisor has died. The signal of its pipe will end this process,
            # too.
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            return False
        self._obey(message, fds)
        return True

    def _obey(self, message: ToWorker, fds: Sequence[int]) -> None:
        match message:
            case JoinDevice():
                self._begin(self._join(message, fds[0]))
            case ModelChanged():
                self._begin(self._take_over(message))
            case SetLog():
                self._logging.apply(message.settings)
            case ServeConnection():
                self._take_connection(socket.socket(fileno=fds[0]))
            case SetDrained():
                self.is_drained = True
            case Drain():
                if self._server is not None:
                    self._server.stop(0)
            case SetAccess():
                self.journal.set_access(message.text)
            case AddNestedCall():
                parent = self._devices.parent(message.number)
                if parent is not None:
                    parent.add_nested_call(nested_call_of(message.call))
            case question:
                self._answer(question)

    def _take_connection(self, connection: socket.socket) -> None:
        """Serve a connection that the supervisor accepted for another worker."""
        if self._server is None:
            connection.close()
        else:
            self._server.take_over(connection)

    def _answer(self, question: Question) -> None:
        match question:
            case PingWorker():
                self._send(Pong(question.ask))
            case AskParents():
                clients = self._devices.client_requests(question.numbers)
                self._send_document(ParentsTold, question.ask, clients)
            case AskJournal():
                self._send_document(JournalTold, question.ask, self.journal.snapshot())

    def _send_document(
        self, kind: type[JournalTold | ParentsTold], ask: int, document: object
    ) -> None:
        """Answer a question with a document of any size."""
        raw = msgpack.packb(document)
        try:
            with memory_of(raw) as memory:
                self._send(kind(ask, len(raw)), (memory.fd,))
        except OSError as error:
            logger.warning("the supervisor cannot be answered: %s", error)

    def _send(self, message: ToSupervisor, fds: tuple[int, ...] = ()) -> None:
        try:
            send_message(self._sock, message, fds, MOST)
        except OSError:  # the supervisor has just died
            pass
        except MessageTooLong as error:
            logger.error("the supervisor cannot be told: %s", error)

    async def _join(self, message: JoinDevice, fd: int) -> None:
        if not await self._devices.join(message, fd, self._publish_all):
            self._send(NotJoined(message.key))

    async def _take_over(self, message: ModelChanged) -> None:
        """Run these versions of a changed model, and no others."""
        name = message.name
        async with self._locks.setdefault(name, asyncio.Lock()):
            before = self._models.get(name, {})
            now: dict[int, tuple[ModelEntry, LocalRunner]] = {}
            for one in message.entries:
                known = before.get(one.key)
                if known is not None:
                    scheduler = known[0].scheduler
                    now[one.key] = (
                        self._runners.entry(one, known[1], scheduler),
                        known[1],
                    )
                    continue
                try:
                    found = await self._runners.find(one)
                except Exception:  # the supervisor waits for the answers below
                    logger.exception("cannot run model %s", name)
                    found = None
                if found is not None:
                    runner, scheduler = found
                    now[one.key] = self._runners.entry(one, runner, scheduler), runner
                else:
                    self._send(Left(one.key))
            self._models[name] = now
            self._defaults[name] = message.default
            left_paths = self._publish(name)
            self._publish_users(name)
            self._send(Switched(message.seq))
        left = {key: runner for key, (_, runner) in before.items() if key not in now}
        streams = {key: before[key][0].scheduler for key in left}
        for key, why in message.failed:
            gone = left.get(key)
            if isinstance(gone, JoinedRunner):
                gone.fail(ExecutionFailed(why))
        await self.paths.linger(left_paths)
        for key, runner in left.items():
            self._begin(self._leave(key, runner, streams[key]))

    async def _leave(
        self, key: int, runner: LocalRunner, scheduler: RequestScheduler | None
    ) -> None:
        await self._runners.leave(runner, scheduler)
        self._send(Left(key))

    def _publish(self, name: str) -> dict[str, ModelEntry]:
        """Publish the versions of a model that can run now; return those that no longer
        run.
        """
        versions = self._models[name].values()
        entries = [entry for entry, runner in versions if can_run(runner)]
        return self.paths.publish(name, entries, self._defaults[name])

    def _publish_users(self, name: str) -> None:
        """Publish the ensembles of a changed model that can run now."""
        for user, published in list(self._models.items()):
            steps = (s for _, r in published.values() for s in getattr(r, "steps", ()))
            if any(step.model == name for step in steps):
                self._begin(self.paths.linger(self._publish(user)))
                self._publish_users(user)

    def _publish_all(self) -> None:
        """Leave the models of a dead device to the supervisor, if they have no other
        device.
        """
        for name in list(self._models):
            self._begin(self.paths.linger(self._publish(name)))
            self._publish_users(name)

    # -- timers

    async def _watch_keys(self) -> None:
        # Not in a thread of the event loop: all of them may wait for drained models.
        with contextlib.closing(DaemonPool(1, "popgate-keys")) as reader:
            while True:
                await asyncio.sleep(KEYS_LOOK)
                try:
                    self.look_at_keys(await reader.run(self.keys.read_again))
                except Exception:  # no thread is left; the next check comes
                    logger.exception("the keys could not be checked for changes")

    def look_at_keys(self, config: Any) -> None:
        if config is not None:
            self.keys.take_over(config)
            self.paths.renew_short()

    async def _tell_gauges(self) -> None:
        while True:
            await asyncio.sleep(GAUGES_TICK)
            self._show_gauges()

    def _show_gauges(self) -> None:
        connections = len(self._connections)
        spans = self.journal.spans
        self._counters.show_own(
            OwnNumbers(connections, lines_dropped(), spans.dropped if spans else 0)
        )
        for number, in_flight in self._devices.in_flight():
            self._counters.show_device(number, in_flight)
        for published in self._models.values():
            for entry, runner in published.values():
                stats: Any = entry.stats
                channels = runner.channels if isinstance(runner, JoinedRunner) else ()
                stats.show_gauges(sum(c.flight.awaiting for c in channels))

    def knows(self, name: str) -> bool:
        """Return whether the worker was ever told of this model."""
        return name in self._models

    def __repr__(self) -> str:
        return f"<Worker {self.table!r}>"


class _Elsewhere(Absent):
    """Replaces a model that left this process while the body of a request to it was
    arriving.

    Later requests are relayed.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def explain(self, name: str, version: str | None) -> str | None:
        return "the model has just changed: retry" if self._worker.knows(name) else None
