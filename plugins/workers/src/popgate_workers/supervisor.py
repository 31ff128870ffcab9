"""`Workers`: the supervisor's side of the processes that accept connections.

The supervisor owns devices, repository and the state of the models. It tells each
worker which models to run. The worker reports when it has applied a change, and when no
request to a replaced model is in flight any more. Requests that a worker cannot run go
to the supervisor's application, which answers them as its own (relay.py). If a
worker dies, its connections are lost, and the supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from app.config.keys import KeysConfig
from app.http.asgi import ASGIApp
from app.observe.answers import Answers
from app.observe.journal import NestedCall
from app.observe.log import LogSettings
from app.observe.metrics import MetricsRegistry, ModelMetrics
from app.observe.processes import OwnNumbers
from app.other_processes import OtherProcesses, WorkerState
from app.serving.table import ModelTable
from app.settings import Settings
from engine import Device, process_of
from popgate_workers.messages import (
    AddNestedCall,
    Drain,
    Files,
    SetAccess,
    SetDrained,
    SetLog,
    Start,
    nested_call_message,
)
from popgate_workers.publication import Publication
from popgate_workers.relay import RelayServer
from popgate_workers.shared_counters import CounterSegment
from popgate_workers.shared_totals import SharedTotals
from popgate_workers.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

#: Seconds that workers may take to apply a published change before the supervisor goes
#: on without them.
SWITCH_TIMEOUT = 60.0
#: A worker that still holds a removed model this many seconds after the drain timeout
#: is ended.
LEAVE_GRACE = 10.0


class Workers(OtherProcesses):
    """All workers of one server, which run the models of `table` and count for
    `metrics`.

    Belongs to the event loop's thread. `listeners` are the sockets from which workers
    accept connections, one for each.
    """

    def __init__(
        self,
        settings: Settings,
        listeners: Sequence[socket.socket],
        table: ModelTable,
        metrics: MetricsRegistry,
        *,
        keeps_listeners: bool = False,
    ) -> None:
        """Make the supervisor's side.

        If `keeps_listeners` is true, the listeners belong to another process and
        outlive this one.
        """
        self._metrics = metrics
        self.start_message = Start(
            settings_message(settings), len(listeners), keeps_listeners
        )
        #: The totals of the workers and of this process.
        self.totals = SharedTotals.create(len(listeners) + 1)
        self.bytes_held = self.totals.bytes_held(len(listeners))
        self._drain_timeout = settings.shutdown_timeout
        #: Seconds that a worker may take to answer a ping; 0 means no limit.
        self.ping_timeout = settings.device_timeout
        self.published = Publication(table, len(listeners))
        #: The numbers reported by workers that have ended.
        self._ended = OwnNumbers()
        self._tasks: set[asyncio.Task[None]] = set()
        self._relay: RelayServer | None = None
        self._files: Callable[[], Files] = partial(Files, KeysConfig(), ())
        self.is_ending = False
        self._workers = [WorkerProcess(self, n, s) for n, s in enumerate(listeners)]
        self._in_turn = itertools.cycle(self._workers)

    def files(self) -> bytes:
        """Return the `Files` for a worker that starts."""
        return msgspec.msgpack.encode(self._files())

    @property
    def count(self) -> int:
        return len(self._workers)

    async def start(self, app: ASGIApp, files: Callable[[], Files]) -> None:
        """Start all workers; they are restarted when they die.

        `app` answers relayed requests. `files` returns the files for a worker that
        starts.
        """
        self._files = files
        self._relay = RelayServer(app)
        self._start_with(relay=self._relay.address)
        await self._relay.start()
        for worker in self._workers:
            task = asyncio.get_running_loop().create_task(worker.run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # -- shutdown

    def begin_drain(self) -> None:
        """Tell all workers to finish. May be called from a signal handler."""
        self.is_ending = True
        for worker in self._workers:
            worker.send(Drain())

    def close_listeners(self) -> None:
        """Stop restarting workers: connections they close stay closed for clients."""
        for worker in self._workers:
            worker.listener.close()

    def hand_over(self, connection: socket.socket) -> bool:
        """Pass a connection to the next worker that can serve it; return whether there
        is one.
        """
        found = itertools.islice(self._in_turn, self.count)
        return any(worker.hand_over(connection) for worker in found)

    @property
    def are_alive(self) -> bool:
        return any(worker.is_alive for worker in self._workers)

    async def stop(self) -> None:
        """End the workers that still run."""
        self.is_ending = True
        for worker in self._workers:
            worker.kill()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._relay is not None:
            self._relay.close()

    def states(self) -> list[WorkerState]:
        return [WorkerState(w.number, w.pid, w.restarts) for w in self._workers]

    # -- messages to the workers

    def _start_with(self, **changes: Any) -> None:
        """Change the first message to workers that start later."""
        self.start_message = replace(self.start_message, **changes)

    def log_changed(self, settings: LogSettings) -> None:
        self._start_with(log=settings)
        for worker in self._workers:
            worker.send(SetLog(settings))

    def access_changed(self, text: str) -> None:
        self._start_with(access=text)
        for worker in self._workers:
            worker.send(SetAccess(text))

    async def client_requests(
        self, numbers: Iterable[int]
    ) -> Mapping[int, tuple[str, str, str]]:
        wanted = list(numbers)
        asked = (
            worker.ask_parents([n for n in wanted if process_of(n) == worker.pid])
            for worker in self._workers
            if any(process_of(number) == worker.pid for number in wanted)
        )
        found = await asyncio.gather(*asked)
        return {number: (i, t, s) for told in found for number, i, t, s in told}

    def add_nested_call(self, number: int, call: NestedCall) -> None:
        for worker in self._workers:
            if worker.pid == process_of(number):
                worker.send(AddNestedCall(number, nested_call_message(call)))

    def drain(self) -> None:
        self._start_with(is_drained=True)
        for worker in self._workers:
            worker.send(SetDrained())

    def model_changed(self, name: str) -> None:
        for changed in self.published.changed_with(name):
            for worker in self._workers:
                worker.mark(changed)

    # -- reports of the workers

    async def release(self, runners: Sequence[object]) -> None:
        """Wait until all workers have applied the published table and have nothing in
        flight on these runners, which are about to be unloaded.

        A worker that is too slow is ended.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SWITCH_TIMEOUT):
                for worker in self._workers:
                    await worker.caught_up()
        for worker in self._workers:
            if not await worker.released(runners, self._drain_timeout + LEAVE_GRACE):
                logger.error(
                    "%r still holds an unloaded model: ending the worker", worker
                )
                worker.kill()

    def counted(self, name: str, version: str) -> Iterator[ModelMetrics]:
        block = self.published.blocks.get((name, version))
        if block is not None:
            for worker in self._workers:
                if worker.counters is not None:
                    yield worker.counters.read(block, name, version)

    def own(self) -> Iterator[OwnNumbers]:
        yield self._ended
        for worker in self._workers:
            if worker.counters is not None:
                yield worker.counters.own()

    def answered(self) -> Iterator[Answers]:
        for worker in self._workers:
            if worker.counters is not None:
                yield worker.counters.answers

    def keep_counts(self, counters: CounterSegment) -> None:
        """Keep the counts of a worker that has ended."""
        for (name, version), block in self.published.blocks.items():
            found = counters.read(block, name, version)
            found.pending = found.awaiting = 0
            self._metrics.model(name, version).add(found)
        self._metrics.answers.add(dict(counters.answers.items()))
        _, lines, spans = counters.own()
        ended = self._ended
        self._ended = OwnNumbers(
            0, ended.lines_dropped + lines, ended.spans_dropped + spans
        )

    def in_flight_on(self, device: Device) -> int:
        number = self.published.device_numbers.get(device.id)
        if number is None:
            return 0
        segments = (worker.counters for worker in self._workers)
        return sum(c.on_device(number) for c in segments if c is not None)

    async def journals(self) -> list[Any]:
        found = await asyncio.gather(*(w.ask_journal() for w in self._workers))
        return [one for one in found if one is not None]

    def __repr__(self) -> str:
        return f"<Workers {self._workers}>"


def settings_message(settings: Settings) -> dict[str, Any]:
    """Return the settings for a worker; the rest is in its environment.

    The supervisor reads `log_config`. A worker must be able to start while that file
    is wrong.
    """
    message = settings.model_dump(mode="json", include=settings.model_fields_set)
    message["log_config"] = None
    if settings.api_key is not None:
        message["api_key"] = settings.api_key.get_secret_value()
    if settings.restricted_api:
        rules = [rule.get_secret_value() for rule in settings.restricted_api]
        message["restricted_api"] = rules
    return message
