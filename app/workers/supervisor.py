"""`Workers`: the supervisor's side of the processes that accept connections.

The supervisor owns devices, repository and the state of the models. It tells each
worker which models to run. The worker reports when it has applied a change, and when no
request to a replaced model is in flight any more. Requests that a worker cannot run go
to the supervisor's application, which answers them as its own (app/http/relay.py). If a
worker dies, its connections are lost, and the supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from app.http.asgi import ASGIApp
from app.http.relay import RelayServer
from app.observe.answers import Answers
from app.observe.journal import Part, part_message
from app.observe.log import LogSettings
from app.observe.metrics import MetricsRegistry, ModelMetrics
from app.observe.shared_counters import MOST_MODELS, CounterSegment, OwnNumbers
from app.observe.shared_totals import SharedTotals
from app.other_processes import OtherProcesses, WorkerState
from app.repository.formats import SharedScheduler
from app.serving.ensembles import EnsembleRunner, EnsembleScheduler
from app.serving.generators import GeneratorScheduler
from app.serving.sequences import SequenceScheduler
from app.serving.steps import StepScheduler
from app.serving.table import ModelEntry, ModelTable, RequestScheduler
from app.settings import Settings
from app.workers.messages import Message, SharedEnsemble, SharedEntry
from app.workers.worker_process import SharedRunner, WorkerProcess
from engine import Device, ModelRunner, RunnerDescription, process_of

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
        self._table = table
        self._metrics = metrics
        self.start_message: Message = {
            "settings": settings_message(settings),
            "workers": len(listeners),
            "keeps_listener": keeps_listeners,
        }
        #: The totals of the workers and of this process.
        self.totals = SharedTotals.create(len(listeners) + 1)
        self.bytes_held = self.totals.bytes_held(len(listeners))
        self._drain_timeout = settings.shutdown_timeout
        #: Seconds that a worker may take to answer a ping; 0 means no limit.
        self.ping_timeout = settings.device_timeout
        #: Blocks of counters, by name and version.
        self._blocks: dict[tuple[str, str], int] = {}
        self._device_numbers: dict[str, int] = {}
        self._keys = itertools.count(1)
        #: The key of each shared runner, with its description at that time.
        self._known: dict[str, list[_Known]] = {}
        #: The names of ensembles, and why workers do not run some models.
        self._ensembles: set[str] = set()
        self._relayed: dict[tuple[str, str], str] = {}
        #: The numbers reported by workers that have ended.
        self._ended = OwnNumbers()
        self._tasks: set[asyncio.Task[None]] = set()
        self._relay: RelayServer | None = None
        self.is_ending = False
        self._workers = [WorkerProcess(self, n, s) for n, s in enumerate(listeners)]
        self._in_turn = itertools.cycle(self._workers)

    @property
    def count(self) -> int:
        return len(self._workers)

    async def start(self, app: ASGIApp) -> None:
        """Start all workers; they are restarted when they die.

        `app` answers relayed requests.
        """
        self._relay = RelayServer(app)
        self.start_message["relay"] = self._relay.address
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
            worker.tell({"op": "drain"})

    def close_listeners(self) -> None:
        """Stop restarting workers: connections they close stay closed for clients."""
        for worker in self._workers:
            worker.listener.close()

    def hand_over(self, connection: socket.socket) -> bool:
        """Pass a connection to the next worker that can serve it; return whether there
        is one.
        """
        found = itertools.islice(self._in_turn, self.count)
        return any(worker.take(connection) for worker in found)

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

    def log_changed(self, settings: LogSettings) -> None:
        self.start_message["log"] = asdict(settings)  # for workers that start later
        for worker in self._workers:
            worker.tell({"op": "log", "settings": asdict(settings)})

    def access_changed(self, text: str) -> None:
        self.start_message["access"] = text
        for worker in self._workers:
            worker.tell({"op": "access", "text": text})

    async def askers(
        self, numbers: Iterable[int]
    ) -> Mapping[int, tuple[str, str, str]]:
        wanted = list(numbers)
        asked = (
            worker.ask_askers([n for n in wanted if process_of(n) == worker.pid])
            for worker in self._workers
            if any(process_of(number) == worker.pid for number in wanted)
        )
        found = await asyncio.gather(*asked)
        return {number: (i, t, s) for told in found for number, i, t, s in told}

    def add_part(self, number: int, part: Part) -> None:
        for worker in self._workers:
            if worker.pid == process_of(number):
                message = part_message(part)
                worker.tell({"op": "part", "number": number, "part": message})

    def drain(self) -> None:
        self.start_message["drained"] = True
        for worker in self._workers:
            worker.tell({"op": "drained"})

    def model_changed(self, name: str) -> None:
        self._ensembles.discard(name)
        for entry in self._table.entries(name):
            if isinstance(entry.runner, EnsembleRunner):
                self._ensembles.add(name)
            self._say_where(entry)
        for worker in self._workers:
            worker.mark(name)
        for user in list(self._ensembles):
            entries = self._table.entries(user)
            steps = (s for e in entries for s in getattr(e.runner, "steps", ()))
            if user != name and any(step.model == name for step in steps):
                self.model_changed(user)

    def _say_where(self, entry: ModelEntry) -> None:
        """Log that workers do not run a version, once."""
        key, why = (entry.spec.name, entry.spec.version), _why_relayed(entry.scheduler)
        if why != self._relayed.get(key, ""):
            self._relayed[key] = why
            if why:
                logger.info("model %s/%s runs in the supervisor: %s", *key, why)

    def device_is_back(self) -> None:
        for name in self._table.names():
            self.model_changed(name)

    def names(self) -> list[str]:
        """Return the names of the served models."""
        return self._table.names()

    def default_of(self, name: str) -> str:
        """Return the version for requests that name none."""
        entry = self._table.default(name)
        return "" if entry is None else entry.spec.version

    def entries_of(self, name: str) -> list[tuple[SharedEntry, SharedRunner]]:
        """Return the versions of a model that workers may run now."""
        shared = []
        for entry in self._table.entries(name):
            runner, block = entry.runner, self._block(name, entry.spec.version)
            described = self._described(entry)
            if block is None or described is None:
                continue
            assert isinstance(runner, ModelRunner | EnsembleRunner)
            key = self._key(name, runner, described)
            shared.append((SharedEntry.of(key, block, entry, described), runner))
        return shared

    def _described(
        self, entry: ModelEntry
    ) -> RunnerDescription | SharedEnsemble | None:
        """Return the data a worker needs to run a version; None if it cannot."""
        runner, scheduler = entry.runner, entry.scheduler
        is_watched = entry.tracer is not None or entry.regions is not None
        if is_watched or not entry.ready or _why_relayed(scheduler):
            return None
        if isinstance(runner, EnsembleRunner):
            members = runner.entries()
            if any(one is None or self._described(one) is None for one in members):
                return None
            return SharedEnsemble(runner.graph, runner.members) if runner.fits else None
        if not isinstance(runner, ModelRunner) or runner.failure is not None:
            return None
        description = runner.description.shared(self.count)
        keys = {device.id: self.device_key(device) for device in runner.devices}
        replicas = tuple((keys[d], n) for d, n in description.replicas)
        return replace(description, replicas=replicas) if replicas else None

    def _key(
        self,
        name: str,
        runner: SharedRunner,
        description: RunnerDescription | SharedEnsemble,
    ) -> int:
        known = self._known.setdefault(name, [])
        for one in known:
            if one.runner is runner and one.description == description:
                return one.key
        known.append(_Known(next(self._keys), runner, description))
        return known[-1].key

    def runner_of(self, name: str, key: int) -> SharedRunner | None:
        """Return the runner behind a key; None if the key is of another model."""
        found = self._known.get(name, ())
        return next((one.runner for one in found if one.key == key), None)

    def _forget(self) -> None:
        """Drop runners that no worker holds and that are no longer served."""
        held = {key for worker in self._workers for key in worker.held}
        for name, known in list(self._known.items()):
            serving = [entry.runner for entry in self._table.entries(name)]
            left = [k for k in known if k.key in held or k.runner in serving]
            if left:
                self._known[name] = left
            else:
                del self._known[name]

    def device_key(self, device: Device) -> str:
        """Return the key of the present process of a device."""
        return f"{device.id}#{device.pid}"

    def device_number(self, device_id: str) -> int:
        return self._device_numbers.setdefault(device_id, len(self._device_numbers))

    def _block(self, name: str, version: str) -> int | None:
        found = self._blocks.get((name, version))
        if found is None and len(self._blocks) < MOST_MODELS:
            found = self._blocks[name, version] = len(self._blocks)
        return found

    # -- reports of the workers

    async def settled(self, leaving: Sequence[object]) -> None:
        """Wait until all workers have applied the published table and have nothing in
        flight on the runners `leaving`, which are about to be unloaded.

        A worker that is too slow is ended.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SWITCH_TIMEOUT):
                for worker in self._workers:
                    await worker.until(lambda w: not w.is_behind)
        runners = {id(runner) for runner in leaving}
        keys = {
            one.key
            for known in self._known.values()
            for one in known
            if id(one.runner) in runners
        }
        if not keys:
            return
        for worker in self._workers:
            try:
                async with asyncio.timeout(self._drain_timeout + LEAVE_GRACE):
                    await worker.until(lambda w: keys.isdisjoint(w.held))
            except TimeoutError:
                logger.error(
                    "%r still holds an unloaded model: ending the worker", worker
                )
                worker.kill()
        self._forget()

    def counted(self, name: str, version: str) -> Iterator[ModelMetrics]:
        block = self._blocks.get((name, version))
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
        for (name, version), block in self._blocks.items():
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
        number = self._device_numbers.get(device.id)
        if number is None:
            return 0
        segments = (worker.counters for worker in self._workers)
        return sum(c.on_device(number) for c in segments if c is not None)

    async def journals(self) -> list[Any]:
        found = await asyncio.gather(*(w.ask_journal() for w in self._workers))
        return [one for one in found if one is not None]

    def __repr__(self) -> str:
        return f"<Workers {self._workers}>"


class _Known(NamedTuple):
    key: int
    runner: SharedRunner
    description: RunnerDescription | SharedEnsemble


def _why_relayed(scheduler: RequestScheduler | None) -> str:
    """Return why workers relay requests to a model with this scheduler; empty if they
    run them.
    """
    if isinstance(scheduler, SequenceScheduler):
        return "one process holds the state of its sequences"
    if scheduler is None or isinstance(
        scheduler, GeneratorScheduler | EnsembleScheduler | SharedScheduler
    ):
        return ""
    if isinstance(scheduler, StepScheduler):
        return "its requests go through [responses]"
    return "its model format runs in one process only"


def settings_message(settings: Settings) -> Message:
    """Return the settings for a worker; the rest is in its environment."""
    message = settings.model_dump(mode="json", include=settings.model_fields_set)
    if settings.api_key is not None:
        message["api_key"] = settings.api_key.get_secret_value()
    if settings.restricted_api:
        rules = [rule.get_secret_value() for rule in settings.restricted_api]
        message["restricted_api"] = rules
    return message
