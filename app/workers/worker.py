"""`Worker`: a process that accepts connections and runs models that its supervisor has
loaded.

It owns its connections, their requests, and its own links and channels to the devices,
so batches mix the requests of all workers. It runs plain inference with known models.
All other requests go to the supervisor (app/http/relay.py), which knows everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import msgpack

from app.http.connection.exchange import Exchange
from app.limits import Limits
from app.observe.journal import Journal, part_of
from app.observe.log import LogControl, lines_dropped
from app.observe.shared_counters import CounterSegment, OwnNumbers
from app.repository.formats import join_format
from app.serving.calls.requester import Requester, requester_of
from app.serving.ensembles import EnsembleRunner, EnsembleScheduler
from app.serving.generators import GeneratorScheduler
from app.serving.keys import Keys
from app.serving.runner import RequestScheduler
from app.serving.steps import StepScheduler
from app.serving.table import ModelEntry, ModelTable
from app.serving.timeout_policy import TimeoutPolicy
from app.workers.messages import (
    MOST,
    TO_WORKER,
    AddPart,
    AskAskers,
    AskersTold,
    AskJournal,
    Drain,
    JoinDevice,
    JournalTold,
    Left,
    Listening,
    ModelChanged,
    Ping,
    Pong,
    Question,
    ServeConnection,
    SetAccess,
    SetDrained,
    SetLog,
    SharedEnsemble,
    SharedEntry,
    Switched,
    ToSupervisor,
    ToWorker,
)
from engine import (
    EngineError,
    ExecutionFailed,
    JoinedDevice,
    JoinedRunner,
    SharedMemory,
    send_message,
)

logger = logging.getLogger(__name__)

#: Seconds between two updates of the gauges of requests in flight.
GAUGES_TICK = 0.25
#: Seconds between checks whether awaited bodies have arrived.
LINGER_TICK = 0.01
#: Seconds between checks of the key file.
KEYS_LOOK = 1.0


#: A runner of a model in a worker.
LocalRunner: TypeAlias = JoinedRunner | EnsembleRunner


def _can_run(runner: LocalRunner) -> bool:
    return runner.fits if isinstance(runner, EnsembleRunner) else runner.serving


class WorkersServer(Protocol):
    """The server of a worker's connections."""

    def take_over(self, connection: socket.socket) -> None: ...
    def stop(self, exit_code: int) -> None: ...


class Worker:
    """The models and devices of one worker process. For its event loop's thread.

    `sock` leads to the supervisor, whose end is the worker's (app/workers/process.py).
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
            limits, absent=_Elsewhere(self), keeps_parts=journal.spans is not None
        )
        self.keys = keys
        self.journal = journal
        #: Whether every answer must be its connection's last.
        self.is_drained = is_drained
        self._server: WorkersServer | None = None
        self._number = number
        self._sock = sock
        self._counters = counters
        self._logging = logging_
        self._drain_timeout = drain_timeout
        self._devices: dict[str, _Joined] = {}
        #: The published versions of each model: entry and runner by key, and the
        #: default.
        self._models: dict[str, dict[int, tuple[ModelEntry, LocalRunner]]] = {}
        self._defaults: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Infer paths that new requests may use. The table also has the paths of
        #: requests whose bodies are still arriving.
        self.paths: dict[str, ModelEntry] = {}
        #: The infer paths among them for requests without ASGI
        #: (app/http/connection/protocol.py).
        self.short: dict[str, ModelEntry] = {}
        self._connections = connections
        #: The infer paths of requests through ASGI.
        self.local: dict[object, str] = {}

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
        for joined in self._devices.values():
            joined.close()
        self._devices.clear()

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
            case AddPart():
                requester = self._requester(message.number)
                if requester is not None:
                    requester.add_part(part_of(message.part))
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
            case Ping():
                self._send(Pong(question.ask))
            case AskAskers():
                askers = self._askers(question.numbers)
                self._send(AskersTold(question.ask, tuple(askers)))
            case AskJournal():
                self._tell_journal(question.ask)

    def _tell_journal(self, ask: int) -> None:
        raw = msgpack.packb(self.journal.tell())
        with SharedMemory.create("journal", len(raw)) as memory:
            memory.view[: len(raw)] = raw
            self._send(JournalTold(ask, len(raw)), (memory.fd,))

    def _askers(self, numbers: Iterable[int]) -> list[tuple[int, str, str, str]]:
        found = ((number, self._requester(number)) for number in numbers)
        askers = ((number, one.asker()) for number, one in found if one is not None)
        return [(number, *one) for number, one in askers if not isinstance(one, int)]

    def _requester(self, number: int) -> Requester | None:
        """Return the request with this number, while it is in flight."""
        devices = (joined.device for joined in self._devices.values())
        requests = (d.channels.request_of(number) for d in devices if d is not None)
        request = next(filter(None, requests), None)
        return None if request is None else requester_of(request.on_done)

    def _send(self, message: ToSupervisor, fds: tuple[int, ...] = ()) -> None:
        with contextlib.suppress(OSError):
            send_message(self._sock, message, fds, MOST)

    async def _join(self, message: JoinDevice, fd: int) -> None:
        door, key = socket.socket(fileno=fd), message.key
        # Calls on behalf of a request must be reported before it ends.
        first = self.receive_all if self.table.keeps_parts else None
        joined = _Joined(message.number, lambda: self._lost(key), first)
        self._devices[key] = joined
        try:
            await joined.open(message.id, door)
        except EngineError as error:  # another attempt will follow
            logger.debug("device %s: %s", key, error)

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
                    now[one.key] = self._entry(one, known[1], scheduler), known[1]
                    continue
                found = await self._found(one)
                if found is not None:
                    runner, scheduler = found
                    now[one.key] = self._entry(one, runner, scheduler), runner
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
        await self._linger(left_paths)
        for key, runner in left.items():
            self._begin(self._leave(key, runner, streams[key]))

    async def _runner(self, one: SharedEntry) -> LocalRunner | None:
        """Return the runner; None if a device has died.

        The supervisor then runs the model, and reports when the device is back.
        """
        if isinstance(one.runner, SharedEnsemble):
            shared = one.runner
            members = tuple(member.value for member in shared.members)
            return EnsembleRunner(
                shared.graph.value, members, self.table, shared.compose
            )
        description = one.runner.description.value
        replicas = description.replicas
        for key, _ in replicas:
            if key in self._devices:
                await self._devices[key].is_open.wait()
        # Among equally busy replicas, the first receives a request. Each worker counts
        # only its own requests, so each begins with another replica.
        first = self._number % max(1, len(replicas))
        runner = replace(description, replicas=replicas[first:] + replicas[:first])
        found = {k: j.device for k, j in self._devices.items() if j.device is not None}
        try:
            # This waits for the device, which may be running a batch.
            return await asyncio.to_thread(JoinedRunner, runner, found)
        except EngineError as error:
            logger.debug("model %s: %s", one.spec.value.name, error)
            return None

    async def _found(
        self, one: SharedEntry
    ) -> tuple[LocalRunner, RequestScheduler | None] | None:
        """Return the runner of a version, and its scheduler.

        None if a device has died, or the files of the model differ from the loaded
        ones.
        """
        runner = await self._runner(one)
        if runner is None:
            return None
        if isinstance(runner, EnsembleRunner):
            return runner, EnsembleScheduler(runner)
        if one.generator is not None:
            return runner, GeneratorScheduler(one.generator.value, runner)
        if one.format is None:
            return runner, None
        try:
            made = await asyncio.to_thread(join_format, one.format.value, runner)
        except (ValueError, OSError) as error:
            logger.warning(
                "model %s/%s runs in the supervisor: %s",
                *(one.spec.value.name, one.spec.value.version, error),
            )
            await asyncio.to_thread(runner.close)
            return None
        return runner, made

    def _entry(
        self, one: SharedEntry, runner: LocalRunner, scheduler: RequestScheduler | None
    ) -> ModelEntry:
        spec = one.spec.value
        return ModelEntry(
            spec,
            runner,
            self._counters.metrics(one.block, spec.name, spec.version),
            timeout=one.timeout,
            max_timeout=one.max_timeout,
            level_timeouts=one.level_timeouts,
            scheduler=scheduler,
            limits=self.table.limits,
        )

    async def _leave(
        self, key: int, runner: LocalRunner, scheduler: RequestScheduler | None
    ) -> None:
        """Release a runner that gets no new requests, when its streams have had their
        last response.
        """
        end = time.monotonic() + self._drain_timeout
        if isinstance(scheduler, StepScheduler):
            await scheduler.drain(self._drain_timeout)
        left = max(0.0, end - time.monotonic())
        if not await asyncio.to_thread(runner.drain, left):
            logger.warning("closing %r with requests in flight", runner)
            runner.close()  # this thread answers its requests
        else:
            await asyncio.to_thread(runner.close)
        self._send(Left(key))

    def _publish(self, name: str) -> dict[str, ModelEntry]:
        """Publish the models that can run now.

        Return, by path, the models that no longer run but may have requests. They
        remain in the table until `_linger` ends.
        """
        before = {p: e for p, e in self.table.paths.items() if e.spec.name == name}
        entries = [e for e, runner in self._models[name].values() if _can_run(runner)]
        self.table.publish(name, entries, default=self._defaults[name])
        paths = self.table.paths
        now = {path: e for path, e in paths.items() if e in entries}
        for path in before:
            self.paths.pop(path, None)
        self.paths.update(now)
        self._renew_short()
        left = {path: e for path, e in before.items() if path not in now}
        paths.update(left)
        return left

    def _publish_users(self, name: str) -> None:
        """Publish the ensembles of a changed model that can run now."""
        for user, published in list(self._models.items()):
            steps = (s for _, r in published.values() for s in getattr(r, "steps", ()))
            if any(step.model == name for step in steps):
                self._begin(self._linger(self._publish(user)))
                self._publish_users(user)

    async def _linger(self, left: Mapping[str, ModelEntry]) -> None:
        """Keep removed models for requests whose bodies are still being received."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._drain_timeout
        while self._is_awaited(left):
            if loop.time() > until:
                break
            await asyncio.sleep(LINGER_TICK)
        for path, entry in left.items():
            if self.table.paths.get(path) is entry and path not in self.paths:
                del self.table.paths[path]

    def _is_awaited(self, paths: Collection[str]) -> bool:
        """Return whether requests to these paths are arriving."""
        if not paths:
            return False
        cycles = (connection.cycle for connection in self._connections)
        return any(path in paths for path in self.local.values()) or any(
            isinstance(cycle, Exchange)
            and cycle.entry is None
            and cycle.path in paths
            and not cycle.response_complete
            for cycle in cycles
        )

    def _renew_short(self) -> None:
        """Choose the direct path for requests, unless keys must be counted for all
        workers.
        """
        self.short.clear()
        if not any(key.is_limited for key in self.keys.table.keys):
            self.short.update(self.paths)

    def _lost(self, key: str) -> None:
        """Leave the models of a dead device to the supervisor, if they have no other
        device.
        """
        joined = self._devices.pop(key, None)
        for name in list(self._models):
            self._begin(self._linger(self._publish(name)))
            self._publish_users(name)
        if joined is not None:
            joined.close()

    # -- timers

    async def _watch_keys(self) -> None:
        while True:
            await asyncio.sleep(KEYS_LOOK)
            self.look_at_keys(await asyncio.to_thread(self.keys.read_again))

    def look_at_keys(self, config: Any) -> None:
        if config is not None:
            self.keys.take_over(config)
            self._renew_short()

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
        for joined in self._devices.values():
            if joined.device is not None:
                self._counters.show_device(joined.number, joined.device.in_flight)
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


class _Elsewhere:
    """Replaces a model that left this process while the body of a request to it was
    arriving (`app.serving.table.Absent`).

    Later requests are relayed.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def explain(self, name: str, version: str | None) -> str | None:
        return "the model has just changed: retry" if self._worker.knows(name) else None

    def is_to_come(self, name: str) -> bool:
        return False

    def offers(self, name: str, version: str | None) -> bool:
        return False

    async def ensure(
        self, name: str, version: str | None, policy: TimeoutPolicy
    ) -> None:
        """Return immediately: a model that is not in the table stays missing."""


class _Joined:
    """A device that this process feeds, driven by its event loop."""

    def __init__(
        self,
        number: int,
        on_lost: Callable[[], None],
        first: Callable[[], None] | None = None,
    ) -> None:
        self.number = number
        self._first = first
        self.device: JoinedDevice | None = None
        #: Set once the device has been joined or cannot be joined.
        self.is_open = asyncio.Event()
        self._on_lost = on_lost
        self._lost_fd = -1

    async def open(self, device_id: str, door: socket.socket) -> None:
        """Join the device. Raises EngineError."""
        try:
            device = await asyncio.to_thread(JoinedDevice, device_id, door)
            device.adopt()
            device.on_lost(lambda _: self._on_lost())
            loop = asyncio.get_running_loop()
            # Duplicate the descriptor: the device closes its own when its process has
            # died.
            self._lost_fd = os.dup(device.lost_fileno())
            loop.add_reader(device.fileno(), self._poll if self._first else device.poll)
            loop.add_reader(self._lost_fd, device.check)
            self.device = device
        finally:
            self.is_open.set()

    def _poll(self) -> None:
        if self._first is not None:
            self._first()
        if self.device is not None:  # unless it was lost meanwhile
            self.device.poll()

    def close(self) -> None:
        """Close; requests in flight fail."""
        device, self.device = self.device, None
        if device is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(device.fileno())
            loop.remove_reader(self._lost_fd)
            os.close(self._lost_fd)
            device.close()
