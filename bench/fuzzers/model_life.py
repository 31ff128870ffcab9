"""A simulator of the life of models: loads, swaps and evictions in one thread.

The tested code is the product's own: the records, the repository, the loader of
versions and ensembles, the memory budget, the control modes, the polls, loading on
demand and the table of models. The folder of models, the threads, the loading itself,
the runners and the clock are simulated. A seed chooses what happens next: requests,
disconnects, load and unload requests, new, changed, broken and removed files, loads
that fail or are cut off, faults of running models, jumps of the clock, a shutdown. At
the end every request and every call has ended, and each is judged.

`python -m bench.fuzzers.model_life 10000` runs so many seeds, and prints the seeds that
failed and the entries of the table `LIFE` that no seed reached;
`python -m bench.fuzzers.model_life --seed 7` prints the events of one seed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import GeneratorType
from typing import Any, NamedTuple, TypeVar, cast

from app.codec.messages import Body
from app.config.ensemble_config import EnsembleConfig, StepConfig
from app.config.model_config import ModelConfig
from app.errors import RequestError, UnknownModel
from app.observe.metrics import MetricsRegistry
from app.repository.control.control_mode import ControlMode, ControlRefused
from app.repository.control.folder_loads import FolderLoads
from app.repository.control.folder_polls import FolderPolls
from app.repository.control.model_control import ModelControl
from app.repository.control.remote_files import RemoteFiles, RemoteWatch
from app.repository.load_errors import LoadCutOff, LoadError
from app.repository.load_overrides import LoadOverrides
from app.repository.loading import ensemble_loader, eviction
from app.repository.loading.ensemble_loader import EnsembleLoader, MissingModels
from app.repository.loading.eviction import Eviction
from app.repository.loading.version_loader import VersionLoader
from app.repository.memory_budget import MemoryBudget
from app.repository.model_life import LIFE, Event, State
from app.repository.on_demand import OnDemandLoader
from app.repository.records import (
    ON_DEMAND,
    LoadedModel,
    ModelRecord,
    ModelRecords,
    RepositoryError,
    VersionRecord,
)
from app.repository.repository import ModelRepository
from app.repository.served_models import ServedModels
from app.repository.source import ScannedModel, VersionSource
from app.serving import table
from app.serving.ensemble import Ensemble, Step
from app.serving.service import Service
from app.serving.table import ModelEntry, ModelTable, infer_path
from app.serving.timeout_policy import TimeoutPolicy
from app.spec import ModelSpec
from app.stage import Phase, Stage
from bench.fuzzers.clock import SimulatedLoop, Stuck, patches, ruled_by
from bench.fuzzers.event_log import EventLog
from bench.fuzzers.seeds import run_seeds
from engine import (
    DeadlineExceeded,
    Device,
    EngineError,
    ExecutionFailed,
    ModelRunner,
    ModelRunnerConfig,
    QueueFull,
    RunnerClosed,
)

T = TypeVar("T")

PLAIN = ("a", "b", "c")
#: An ensemble, and a model that calls another one.
ENSEMBLE, CALLER = "e", "f"
NAMES = (*PLAIN, ENSEMBLE, CALLER)
STEPS = (("a", 0), ("b", 1))
CALLED = ("c",)
VERSIONS = (1, 2, 3)
#: Ways of files: they load; they never load; each load has a random outcome; they take
#: more memory than all models may use.
WAYS = ("good", "broken", "flaky", "huge")
HUGE = 100
#: Seconds until everything that was begun must have ended.
PATIENCE = 5_000.0
POLL = 5.0
#: Seconds between the looks of loads that wait, which are shorter in the product.
TICK = 0.5
OTHER_OPTIONS = LoadOverrides(config="{}")

#: What runs in a thread: it yields the seconds until it goes on.
Thread = Generator[float, None, T]


class Files(NamedTuple):
    """The files of a version in the folder. Each change has its own stamp."""

    stamp: int
    way: str


@dataclass
class Folder:
    """A model in the folder."""

    memory: int
    queue: int
    versions: dict[int, Files] = field(default_factory=dict)
    problem: str = ""


class Threads:
    """Stands for a pool of threads: what runs there ends when the seed says."""

    def __init__(self, world: World, size: int) -> None:
        self._world = world
        self._room = asyncio.Semaphore(size)

    async def run(self, call: Callable[[], T]) -> T:
        job = self._world.loop.create_task(self._run(call))
        self._world.jobs.add(job)
        job.add_done_callback(self._world.jobs.discard)
        return await asyncio.shield(job)

    async def _run(self, call: Callable[[], Any]) -> Any:
        async with self._room:
            await asyncio.sleep(self._world.pause())
            result = call()
            if not isinstance(result, GeneratorType):
                return result
            while True:
                try:
                    seconds = next(result)
                except StopIteration as end:
                    return end.value
                await asyncio.sleep(seconds)


class AtOnce:
    """Stands for the thread that reads bodies."""

    def submit(self, call: Callable[[], T], order: float = 0.0) -> Future[T]:
        job: Future[T] = Future()
        job.set_result(call())
        return job


class Places:
    """Stands for `ModelPlaces`: the folder of models."""

    folder = None
    remote = None

    def __init__(self, world: World) -> None:
        self._world = world

    def names(self) -> list[str]:
        return sorted(self._world.folders)

    def scan(self, name: str, override: str | None = None) -> ScannedModel | None:
        folder = self._world.folders.get(name)
        if folder is None:
            return None
        config = self._world.config(name, folder, is_other=override is not None)
        versions = tuple(
            VersionSource(n, (Path(f"{name}/{n}/m.popef"),), stamp=(files.stamp,))
            for n, files in sorted(folder.versions.items())
        )
        stamp: Any = (folder.memory, folder.queue, folder.problem, *versions)
        return ScannedModel(name, versions, config, folder.problem, stamp)

    def scan_all(self) -> dict[str, ScannedModel]:
        found = ((name, self.scan(name)) for name in self.names())
        return {name: scanned for name, scanned in found if scanned is not None}

    def holds(self, name: str) -> bool:
        return name in self._world.folders

    def public(self, reason: str) -> str:
        return reason


class Loader:
    """Stands for `ModelLoader`: a load takes some time, and its outcome is random."""

    def __init__(self, world: World) -> None:
        self._world = world

    def is_prepared(self, source: VersionSource, config: ModelConfig) -> bool:
        return True

    def prepare(self, source: VersionSource, config: ModelConfig) -> None:
        """Do nothing: the models are compiled."""

    def memory_of(self, source: VersionSource, config: ModelConfig) -> int:
        return config.memory or 0

    def load(
        self,
        name: str,
        source: VersionSource,
        config: ModelConfig,
        replaces: LoadedModel | None,
    ) -> Thread[LoadedModel]:
        world, chance = self._world, self._world.random
        key = (name, source.version)
        world.load_begins(name, source, config)
        runner = Runner(world, name, source, config.memory or 0)
        try:
            yield chance.choice((0.01, 0.5, 3.0, 20.0))
            way = world.ways[source.stamp]
            outcome = chance.choice(_OUTCOMES) if way == "flaky" else way
            if outcome == "faulty":
                runner.error = ExecutionFailed("the warm-up found it at fault")
            elif outcome != "good":
                raise _ERRORS[outcome]()
        except BaseException:
            runner.close()
            raise
        finally:
            world.loading.discard(key)
        spec = ModelSpec(name, str(source.version), (), ())
        memory = config.memory or 0
        now = world.clock.time()
        return LoadedModel(spec, runner, config, source, memory, now, warmed=True)


_OUTCOMES = ("good", "good", "broken", "lost", "no room", "faulty", "bug")
_ERRORS: Mapping[str, Callable[[], Exception]] = {
    "broken": lambda: LoadError("the files are broken"),
    "lost": lambda: LoadCutOff("the device was lost", "device_lost"),
    "no room": lambda: LoadCutOff("too little memory", "out_of_memory", at_once=False),
    "bug": lambda: RuntimeError("a bug in a loader"),
}


class Health:
    """Stands for the health of a runner."""

    def __init__(self) -> None:
        self.callback: Callable[[EngineError], None] | None = None

    def on_failure(self, callback: Callable[[EngineError], None]) -> None:
        self.callback = callback


class Runner(ModelRunner):
    """A runner whose requests take some time; there is no device."""

    def __init__(
        self, world: World, name: str, source: VersionSource, memory: int
    ) -> None:
        self._world = world
        self.label = f"{name}/{source.version}"
        self.stamp = source.stamp
        self.memory = memory
        self.config = ModelRunnerConfig()
        self.health: Any = Health()
        self.error: EngineError | None = None
        self.requests: set[asyncio.Future[None]] = set()
        #: Whether it may be closed with requests in flight.
        self.gave_up = False
        self.is_closed = False
        world.open.append(self)

    @property
    def in_flight(self) -> int:
        return len(self.requests)

    @property
    def serving(self) -> bool:
        return not self.is_closed

    @property
    def failure(self) -> EngineError | None:
        return self.error

    async def execute_for(self, seconds: float, until: float) -> None:
        """Run a request. Raises the errors of a runner."""
        if self.is_closed or self.error is not None:
            raise self.error or RunnerClosed(f"{self.label} was closed")
        done = self._world.loop.create_future()
        self.requests.add(done)
        timer = self._world.loop.call_later(seconds, _resolve, done)
        try:
            await done
        finally:
            timer.cancel()
            self.requests.discard(done)

    def fail(self, error: EngineError) -> None:
        """Find the model at fault."""
        self.error = error
        self._refuse(error)
        self.health.callback(error)

    def drain(self, timeout: float) -> Any:
        return self._drain(timeout)

    def _drain(self, timeout: float) -> Thread[bool]:
        end = self._world.clock.monotonic() + timeout
        while self.requests:
            if self._world.clock.monotonic() > end:
                self.gave_up = True
                return False
            yield TICK
        return True

    def close(self) -> None:
        world = self._world
        world.expect(not self.is_closed, f"{self.label} is closed twice")
        drained = not self.requests or self.gave_up
        world.expect(drained, f"{self.label} is closed with requests in flight")
        self.is_closed = True
        world.open.remove(self)
        self._refuse(RunnerClosed(f"{self.label} was closed"))

    def __repr__(self) -> str:
        return f"<{self.label} {self.stamp}>"

    def _refuse(self, error: EngineError) -> None:
        for done in list(self.requests):
            if not done.done():
                done.set_exception(error)
        self.requests.clear()


def _resolve(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


class SimulatedEnsemble(Ensemble):
    """An ensemble that runs its steps one after the other, as the plugin does."""

    def __init__(
        self, name: str, version: str, members: list[ModelSpec], table: ModelTable
    ) -> None:
        steps = tuple(Step(m, m, v, (), ()) for m, v in STEPS)
        super().__init__(ModelSpec(name, version, (), ()), steps, members)
        self._table = table
        self._requests = 0
        self._is_closed = False

    @property
    def _paths(self) -> list[str]:
        return [infer_path(step.model, step.version) for step in self.steps]

    @property
    def devices(self) -> tuple[Device, ...]:
        return ()

    @property
    def serving(self) -> bool:
        return True

    @property
    def fits(self) -> bool:
        return True

    @property
    def missing(self) -> str:
        return ""

    @property
    def is_current(self) -> bool:
        entries = [self._table.paths.get(path) for path in self._paths]
        return all(
            self._table.offers(path) if entry is None else entry.spec is spec
            for entry, path, spec in zip(
                entries, self._paths, self.members, strict=True
            )
        )

    @property
    def in_flight(self) -> int:
        return self._requests

    @property
    def shared(self) -> bytes:
        return b""

    def submit(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    async def execute_for(self, seconds: float, until: float) -> None:
        """Run a request until a time at most. Raises the errors of an ensemble."""
        if self._is_closed:
            raise RunnerClosed("the ensemble was unloaded")
        self._requests += 1
        try:
            for path in self._paths:
                await self._step(path, seconds, until)
        finally:
            self._requests -= 1

    async def _step(self, path: str, seconds: float, until: float) -> None:
        while (entry := self._table.paths.get(path)) is None:
            if not self._table.offers(path):
                raise self._table.missing(path) or UnknownModel(path)
            left = max(0.0, until - asyncio.get_running_loop().time())
            await self._table.fetch(path, TimeoutPolicy(left, asked=left))
        await run_on(entry, seconds, until)

    def drain(self, timeout: float) -> Any:
        return self._drain(timeout)

    def _drain(self, timeout: float) -> Thread[bool]:
        for _ in range(int(timeout / TICK)):
            if not self._requests:
                return True
            yield TICK
        return not self._requests

    def close(self) -> None:
        self._is_closed = True


class EnsembleMaker:
    """Stands for the plugin of ensembles."""

    def ensemble(
        self,
        name: str,
        version: str,
        config: ModelConfig,
        members: list[ModelSpec],
        declared: object,
        table: ModelTable,
    ) -> SimulatedEnsemble:
        return SimulatedEnsemble(name, version, members, table)


async def run_on(entry: ModelEntry, seconds: float, until: float) -> None:
    """Run a request on a version, and count it; an ensemble waits until a time."""
    runner: Any = entry.runner
    entry.stats.pending += 1
    try:
        await runner.execute_for(seconds, until)
    finally:
        entry.stats.pending -= 1
        entry.stats.last_inference = runner_time(entry)


def runner_time(entry: ModelEntry) -> float:
    """Return the time of day for a runner's statistics."""
    return asyncio.get_running_loop().time() + 1e9


@dataclass
class Asked:
    """A request, with all that is needed to judge its answer."""

    name: str
    version: int
    timeout: float
    began: float
    #: How far the clock had jumped.
    jumped: float
    is_probe: bool = False
    was_cancelled: bool = False
    waited: float = 0.0
    entry: ModelEntry | None = None
    error: BaseException | None = None

    def __str__(self) -> str:
        return f"{self.name}/{self.version or '-'}"


class World(EventLog):
    """A gateway's models. A seed decides what happens to them."""

    def __init__(self, seed: int, events: int = 40) -> None:
        super().__init__()
        self.random = chance = random.Random(seed)
        self.loop = SimulatedLoop(self.clock)
        self.loop.set_exception_handler(self._unhandled)
        self._events = events
        self._jumped = 0.0
        self._numbers = itertools.count(1)
        self.ways: dict[object, str] = {}
        self._configs: dict[object, ModelConfig] = {}
        self.folders: dict[str, Folder] = {}
        self.loading: set[tuple[str, int]] = set()
        self.open: list[Runner] = []
        #: What runs in threads.
        self.jobs: set[asyncio.Task[Any]] = set()
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._asked: list[tuple[asyncio.Task[None], Asked]] = []
        self._is_ending = False
        self.mode = chance.choice((*ControlMode, ControlMode.MANAGED))
        self.title = self.mode.value
        self.does_poll = self.mode is ControlMode.POLL or chance.random() < 0.2
        self.lazily = chance.random() < 0.5
        self.limit = chance.choice((0, 3, 4, 6))
        self._drain_timeout = chance.choice((1.0, 30.0))
        for name in NAMES:
            if chance.random() < 0.8:
                self._add_model(name)
        self._build(chance.choice((1, 2, 4)))

    def _build(self, threads: int) -> None:
        """Put the parts together as `app.assembly` does."""
        anything: Any = None
        self.stage = Stage()
        self.places = cast("Any", Places(self))
        self.records = ModelRecords(self.places, self.mode.not_loaded_message)
        self.on_demand = OnDemandLoader(self.stage, self.records)
        metrics = MetricsRegistry()
        self.table = ModelTable(absent=self.on_demand)
        self.service = Service(self.table, journal=anything, answers=anything)
        self.service._codec = cast("Any", AtOnce())
        self.budget, missing = MemoryBudget(self.limit), MissingModels()
        pools = [Threads(self, threads) for _ in range(3)]
        load_pool, scan_pool, unload_pool = pools
        self.served = ServedModels(
            self.table,
            metrics,
            self.budget,
            unload_pool,  # type: ignore[arg-type]
            self._drain_timeout,
            self._release,
        )
        versions = VersionLoader(
            self.places,
            Loader(self),  # type: ignore[arg-type]
            EnsembleLoader(self.records, self.table, missing),
            self.budget,
            Eviction(self.budget, self.records, metrics, self.served),
            self.served,
            load_pool,  # type: ignore[arg-type]
            load_pool,  # type: ignore[arg-type]
        )
        self.repository = ModelRepository(self.records, versions, self.served)
        remote = RemoteFiles(self.records, None, load_pool, load_pool)  # type: ignore[arg-type]
        loads = FolderLoads(
            self.records,
            self.places,
            self.repository,
            remote,
            load_pool,  # type: ignore[arg-type]
            lazily=self.lazily,
        )
        watch = RemoteWatch(remote, loads.follow_remote, polls=False, seconds=POLL)
        self.polls = FolderPolls(
            self.records,
            self.repository,
            loads,
            watch,
            known_only=self.mode is ControlMode.EXPLICIT,
            seconds=POLL,
        )
        self.control = ModelControl(
            self.records,
            self.places,
            self.repository,
            loads,
            watch,
            load_pool,  # type: ignore[arg-type]
            scan_pool,  # type: ignore[arg-type]
            self.mode,
            _NoUploads(),  # type: ignore[arg-type]
            ("a", "b"),
        )
        missing.register(self.control.load_member)

    # -- what the simulated parts ask

    def pause(self) -> float:
        """Return the seconds that a short job takes in a thread."""
        return self.random.choice((0.0, 0.0, 0.002, 0.05))

    def config(self, name: str, folder: Folder, *, is_other: bool) -> ModelConfig:
        """Return the options of a model; the same object for the same options."""
        key = name, folder.memory, folder.queue, is_other
        found = self._configs.get(key)
        if found is None:
            ensemble = None
            if name == ENSEMBLE:
                steps = tuple(StepConfig(model, version) for model, version in STEPS)
                ensemble = EnsembleConfig(steps)
            found = self._configs[key] = ModelConfig(
                memory=None if ensemble else folder.memory,
                max_queue_size=1024 if ensemble else folder.queue,
                ensemble=ensemble,
                models=CALLED if name == CALLER else None,
                max_request_rows=7 if is_other else 0,
            )
        return found

    async def _release(self, runners: object) -> None:
        """Stand for the wait until other processes use the table."""
        if self.random.random() < 0.3:
            await asyncio.sleep(self.random.choice((0.0, 0.01)))

    def load_begins(
        self, name: str, source: VersionSource, config: ModelConfig
    ) -> None:
        key = name, source.version
        self.say(f"loading {name}/{source.version} {source.stamp}")
        # At the end, loads are interrupted, but their threads go on.
        is_alone = key not in self.loading or self._is_ending
        self.expect(is_alone, f"{key} is loaded twice at the same time")
        self.loading.add(key)
        record = self.records.get(name)
        entry = record.versions.get(source.version) if record is not None else None
        if entry is not None and entry.loaded is not None:
            is_there = entry.loaded.is_from(source, config)
            self.expect(not is_there, f"{key} is loaded although it is in memory")
        self._check_memory()

    def _check_memory(self) -> None:
        if not self.limit:
            return
        budget = self.budget
        self.expect(budget.used <= self.limit, f"{budget} is beyond its limit")
        taken = sum(runner.memory for runner in self.open)
        self.expect(taken <= budget.used, f"{budget}, but models take {taken}")

    def event_of(self, entry: VersionRecord, event: Event) -> None:
        """Judge an event of a version before it is processed."""
        self.lived[entry.state, event] += 1
        record = next(
            (r for r in self.records.all() if r.versions.get(entry.version) is entry),
            None,
        )
        name = record.name if record is not None else "?"
        self.say(f"{event.name} {name}/{entry.version} {entry.state.value}")
        is_known = event in LIFE[entry.state]
        self.expect(is_known, f"{event.name} in {entry.state.name} is not in LIFE")
        if event is Event.EVICT and entry.loaded is not None:
            runner = entry.loaded.runner
            self.expect(not runner.in_flight, f"{name} is evicted while it runs")

    def _unhandled(self, loop: object, context: dict[str, Any]) -> None:
        """Judge an error that nothing handled: at the end, nothing waits for loads."""
        error = context.get("exception")
        self.expect(self._is_ending, f"{context['message']}: {error!r}")

    # -- what happens

    def run(self) -> list[str]:
        """Run the world to its end; return the faults."""
        asyncio.set_event_loop(self.loop)
        try:
            with ruled_by(self.clock, "app"), _parts_of(self):
                self.loop.run_until_complete(self._live())
        except Stuck:
            self.expect(False, "nothing can happen any more")
        finally:
            for task in asyncio.all_tasks(self.loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            self.loop.close()
            asyncio.set_event_loop(None)
        return self.faults

    async def _live(self) -> None:
        chance = self.random
        self._begin(self._start(), "start")
        for phase in range(2):
            for _ in range(self._events // 2):
                self._happen()
                await asyncio.sleep(
                    chance.choice((0.0, 0.0, 0.001, 0.02, 0.3, 0.5, 2.0, 11.0))
                )
            if phase and chance.random() < 0.3:
                await self._shut_down()
                return
            await self._settle()
            await self._check()
            if self.faults:
                return
        await self._unload_all()

    def _begin(self, call: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = self.loop.create_task(call)
        self._tasks[task] = what
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        what = self._tasks.pop(task)
        if not task.cancelled() and task.exception() is not None:
            self.expect(False, f"{what} raises {task.exception()!r}")

    async def _start(self) -> None:
        """Do what the gateway does at its start."""
        self.stage.enter(Phase.LOADING)
        await self.control.start()
        if self.does_poll:
            self.polls.start()
        self.stage.enter(Phase.SERVING)
        self.say("started")

    def _happen(self) -> None:
        actions = (self._ask, self._cancel, self._load, self._unload, self._change)
        rare = (self._fault, self._jump)
        (action,) = self.random.choices((*actions, *rare), (9, 1, 1.5, 1, 2, 0.7, 0.7))
        action()

    def _ask(self, name: str = "") -> None:
        chance = self.random
        name = name or chance.choice(NAMES)
        version = chance.choice((0, 0, 0, *VERSIONS))
        seconds = chance.choice((0.001, 0.1, 2.0, 12.0))
        timeout = chance.choice((1.0, 10.0, 40.0, 60.0))
        for _ in range(chance.choice((1, 1, 1, 4))):
            self._ask_one(name, version, timeout, seconds)

    def _ask_one(
        self, name: str, version: int, timeout: float, seconds: float
    ) -> Asked:
        one = Asked(name, version, timeout, self.loop.time(), self._jumped)
        self.say(f"request {one} {timeout:g} s")
        task = self._begin(self._answer(one, seconds), f"request {one}")
        self._asked.append((task, one))
        return one

    async def _answer(self, one: Asked, seconds: float) -> None:
        """Do what the front does with a request."""
        path = infer_path(one.name, one.version)
        try:
            entry = self.table.paths.get(path)
            if entry is None:
                if not (self.table.offers(path) or self.table.is_to_come(path)):
                    raise self.table.missing(path) or UnknownModel(path)
                headers = {b"x-request-timeout": b"%g" % one.timeout}
                body: Body = [b"{}"]
                entry, one.waited = await self.service.fetch(path, headers, body)
            one.entry = entry
            await run_on(entry, seconds, one.began + one.timeout)
        except (RequestError, EngineError) as error:
            one.error = error
            self.say(f"refused {one}: {type(error).__name__}: {error}")
        else:
            self.say(f"answered {one}")
        self._judge(one)

    def _judge(self, one: Asked) -> None:
        took = self.loop.time() - one.began - (self._jumped - one.jumped)
        if one.entry is None:
            self.expect(took < one.timeout + 1, f"{one} waited {took:.1f} s")
        error = one.error
        if error is None:
            assert one.entry is not None
            number = int(one.entry.spec.version)
            self.expect(one.version in (0, number), f"{one} is answered by {number}")
            return
        self.counts[type(error).__name__] += 1
        if isinstance(error, DeadlineExceeded):
            late = took + (self._jumped - one.jumped) >= one.timeout - 0.001
            self.expect(late, f"{one} fails after {took:.3f} s: {error!r}")
        elif isinstance(error, RequestError):
            for excuse in (ON_DEMAND, "it is ready"):
                self.expect(excuse not in str(error), f"{one} fails: {error}")
        else:
            known = (QueueFull, RunnerClosed, ExecutionFailed)
            self.expect(isinstance(error, known), f"{one} fails: {error!r}")

    def _cancel(self) -> None:
        waiting = [(t, o) for t, o in self._asked[-20:] if not t.done()]
        if waiting:
            task, one = self.random.choice(waiting)
            self.say(f"cancel {one}")
            one.was_cancelled = True
            task.cancel()

    def _load(self) -> None:
        name = self.random.choice(NAMES)
        is_other = self.random.random() < 0.2
        request = OTHER_OPTIONS if is_other else LoadOverrides()
        self.say(f"load {name}{' with options' * is_other}")
        self._begin(self._control(self.control.load(name, request)), f"load {name}")

    def _unload(self) -> None:
        name = self.random.choice(NAMES)
        self.say(f"unload {name}")
        follow = (lambda model: True) if self.random.random() < 0.5 else None
        call = self.control.unload(name, follow)
        self._begin(self._control(call), f"unload {name}")

    async def _control(self, call: Coroutine[Any, Any, ModelRecord]) -> None:
        try:
            record = await call
        except (RepositoryError, ControlRefused) as error:
            self.counts[type(error).__name__] += 1
        else:
            self.say(f"done {record.name} {record.state.value}")

    def _add_model(self, name: str) -> None:
        chance = self.random
        memory = 0 if name == ENSEMBLE else chance.choice((1, 1, 2, 3))
        folder = Folder(memory, chance.choice((2, 1024)))
        self.folders[name] = folder
        for number in VERSIONS[: 1 if name == ENSEMBLE else chance.choice((1, 1, 2))]:
            self._add_version(folder, number)

    def _add_version(self, folder: Folder, number: int) -> None:
        way = self.random.choices(WAYS, (6, 1, 2, 0.2))[0]
        files = Files(next(self._numbers), way if way != "huge" else "good")
        self.ways[files.stamp,] = files.way
        if way == "huge" and len(folder.versions) == 0 and folder.memory:
            folder.memory = HUGE
        folder.versions[number] = files

    def _change(self) -> None:
        """Change the folder of models."""
        chance = self.random
        name = chance.choice(NAMES)
        folder = self.folders.get(name)
        if folder is None:
            self._add_model(name)
            self.say(f"add {name}")
            return
        what = chance.choices(
            ("version", "fewer", "remove", "problem", "options"), (6, 1, 1, 0.5, 0.5)
        )[0]
        self.say(f"change {name} {what}")
        if what == "version":
            folder.problem = ""
            self._add_version(folder, chance.choice(VERSIONS))
        elif what == "fewer" and len(folder.versions) > 1:
            del folder.versions[chance.choice(sorted(folder.versions))]
        elif what == "remove":
            del self.folders[name]
        elif what == "problem":
            folder.problem = "its options are wrong"
        elif what == "options":
            folder.queue = 3

    def _fault(self) -> None:
        """Find a model at fault while it serves."""
        runners = [r for r in self.open if r.health.callback and r.error is None]
        if runners:
            runner = self.random.choice(runners)
            self.say(f"fault {runner.label}")
            runner.fail(ExecutionFailed("its runs end its device"))

    def _jump(self) -> None:
        seconds = self.random.choice((0.1, 9.0, 40.0))
        self.say(f"jump {seconds} s")
        self._jumped += seconds
        self.clock.now += int(seconds * 1e9)

    # -- the end

    async def _settle(self) -> None:
        """Let everything that was begun end, and the polls find every change."""
        while self._tasks:
            tasks = list(self._tasks)
            _, left = await asyncio.wait(tasks, timeout=PATIENCE)
            for task in left:
                self.expect(False, f"{self._tasks[task]} never ends")
            if left:
                return
        # Loads whose requests have ended, and drains of faulty models; then what polls
        # find, which load one long model after the other.
        end = self.loop.time() + PATIENCE
        for pause in (0.0, 100.0):
            await asyncio.sleep(pause)
            while any(r.lock.locked() for r in self.records.all()):
                await asyncio.sleep(TICK)
                if self.loop.time() > end:
                    break
        self.say("settled")

    async def _check(self) -> None:
        """Check that the parts agree while nothing happens."""
        if self.faults:
            return
        self._check_memory()
        served: list[object] = []
        for record in self.records.all():
            self._check_record(record)
            served += [loaded.runner for loaded in record.serving.values()]
        for runner in self.open:
            self.expect(runner in served, f"{runner.label} is open but does not serve")
        known = {record.name for record in self.records.all()}
        self.expect(known >= set(self.table.names()), "the table has unknown models")
        memory = sum(runner.memory for runner in self.open)
        is_right = self.budget.used in (memory, memory if self.limit else 0)
        self.expect(is_right, f"{self.budget}, but models take {memory}")
        for record in self.records.all():
            for number in (0, *record.versions):
                await self._probe(record, number)

    def _check_record(self, record: ModelRecord) -> None:
        name = record.name
        self.expect(not record.lock.locked(), f"{name} is locked")
        self.expect(not record.is_pending, f"{name} is pending")
        for number, entry in record.versions.items():
            is_there = entry.loaded is not None
            what = f"{name}/{number} is {entry.state.name}"
            self.expect((entry.state is State.READY) == is_there, what)
            passes = entry.state in (State.LOADING, State.DRAINING)
            self.expect(not passes, what)
        entries = [entry.runner for entry in self.table.entries(name)]
        serving = [loaded.runner for loaded in record.serving.values()]
        self.expect(entries == serving, f"the table has {entries} of {name}")
        default = self.table.default(name)
        found = default.runner if default is not None else None
        mine = record.default.runner if record.default is not None else None
        self.expect(found is mine, f"{name}: {mine} is the default, not {found}")

    async def _probe(self, record: ModelRecord, number: int) -> None:
        """Check that a version that is in memory answers."""
        asked = str(number) if number else None
        entry = record.versions.get(number or record.default_version or 0)
        if entry is None or not entry.is_ready:
            return
        in_memory = entry.loaded is not None
        one = self._ask_one(record.name, number, 60.0, 0.1)
        await asyncio.wait(list(self._tasks), timeout=PATIENCE)
        if in_memory and record.name != ENSEMBLE:
            what = f"{record.name}/{asked} is in memory and fails: {one.error!r}"
            self.expect(one.error is None, what)

    async def _unload_all(self) -> None:
        self.polls.stop()
        for record in self.records.all():
            call = self.repository.unload(record.name)
            self._begin(call, f"unload {record.name}")
        await self._settle()
        self._expect_nothing()
        self.expect(self.budget.used == 0, f"{self.budget} after the end")
        for record in self.records.all():
            for entry in record.versions.values():
                is_gone = entry.state is State.UNLOADED
                what = f"{record.name}/{entry.version} is {entry.state.name}"
                self.expect(is_gone, f"{what} after its unloading")

    async def _shut_down(self) -> None:
        """Do what the gateway does at its end."""
        self.say("shutdown")
        self._is_ending = True
        self.stage.enter(Phase.ENDING)
        for task, what in list(self._tasks.items()):
            if what == "start" or what.startswith("request"):
                task.cancel()
        self.polls.stop()
        self.control.stop()
        self.on_demand.close()
        await asyncio.sleep(self.pause())  # saves the state of models
        self.repository.close()
        await self._settle()
        self.expect(not self.table.paths, "the table has models after the end")

    def _expect_nothing(self) -> None:
        left = [runner.label for runner in self.open]
        self.expect(not left, f"{left} stay loaded")
        self.expect(not self.table.paths, f"{list(self.table.paths)} stay in the table")


class _NoUploads:
    """Stands for the uploaded files: there are none."""

    def sweep(self) -> None:
        pass


@contextmanager
def _parts_of(world: World) -> Iterator[None]:
    """Let the product use the world's ensembles, and tell the world of events."""
    on = VersionRecord.on

    def told(entry: VersionRecord, event: Event, **options: Any) -> LoadedModel | None:
        world.event_of(entry, event)
        return on(entry, event, **options)

    with patches() as patch:
        patch(VersionRecord, "on", told)
        patch(ensemble_loader, "ensemble_kind", EnsembleMaker)
        patch(ensemble_loader, "_TICK", TICK)
        patch(eviction, "EVICTION_TICK", TICK)
        patch(table, "_LOOK", TICK)
        yield


def simulate(seed: int, events: int = 40) -> World:
    """Run one seed; return its world, whose `faults` say what was wrong."""
    world = World(seed, events)
    world.run()
    return world


def unreached(lived: Counter[tuple[State, Event]]) -> list[tuple[State, Event]]:
    """Return the entries of `LIFE` that are not among those."""
    return [
        (state, event)
        for state, transitions in LIFE.items()
        for event in transitions
        if not lived[state, event]
    ]


def main() -> int:
    failed, lived = run_seeds(__doc__, simulate)
    if lived:
        never = [f"{event.name} in {state.name}" for state, event in unreached(lived)]
        print(f"never: {', '.join(never) or 'nothing'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
