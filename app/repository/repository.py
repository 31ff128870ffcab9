"""The served models: loading, swapping and unloading them while others run.

Everything here runs on the event loop's thread except the loading itself. Operations on
one model happen one after the other. Different models do not wait for each other. A new
version is loaded beside the old one and replaces it when it is ready. The old one is
closed after its last request is answered.

`app/repository/model_control.py` decides which models are loaded, and when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from app.background import DaemonPool
from app.config.priorities import timeouts
from app.observe.metrics import MetricsRegistry
from app.repository.ensemble_loader import EnsembleLoader
from app.repository.loader import LoadCutOff, LoadedModel, LoadError, ModelLoader
from app.repository.memory_budget import MemoryBudget
from app.repository.model_life import Event, State
from app.repository.model_record import ModelRecord, VersionRecord
from app.repository.places import ModelPlaces
from app.repository.scan import ModelSource, VersionSource
from app.serving.ensembles import EnsembleRunner
from app.serving.sequences import SequenceScheduler
from app.serving.steps import StepScheduler
from app.serving.table import ModelEntry, ModelTable
from app.sizes import size_text
from engine import EngineError, ModelRunner

logger = logging.getLogger(__name__)

# Seconds that a load waits for models in use to become idle, if it needs their memory.
EVICTION_TIMEOUT = 30.0
EVICTION_TICK = 0.02


class NoMemory(LoadCutOff):
    """Loading needs memory that other models use."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "model_memory_full")


class ModelRepository:
    """The models of some places, and their states."""

    def __init__(
        self,
        places: ModelPlaces,
        loader: ModelLoader,
        pool: DaemonPool,
        table: ModelTable,
        metrics: MetricsRegistry,
        *,
        load_member: Callable[[str], Awaitable[None]],
        drain_timeout: float,
        budget: MemoryBudget,
        compile_pool: DaemonPool,
        unload_pool: DaemonPool,
        settled: Callable[[Sequence[object]], Awaitable[None]],
        newcomer: str,
    ) -> None:
        """Make the repository.

        `newcomer` is the message for a model added after the start. `settled` returns
        when all processes of the server use the published table, and none has requests
        in flight on these runners any more.
        """
        self._compile_pool = compile_pool
        self._unload_pool = unload_pool
        self.places = places
        self.budget = budget
        self._loader = loader
        self._pool = pool
        self._table = table
        self._metrics = metrics
        self._drain_timeout = drain_timeout
        self._records: dict[str, ModelRecord] = {}
        self._closing = False
        self._leaving: set[asyncio.Task[None]] = set()
        self._ensembles = EnsembleLoader(self, table, load_member)
        self._settled = settled
        self._newcomer = newcomer

    # -- state

    def models(self) -> list[ModelRecord]:
        """Return all known models, by name."""
        return [self._records[name] for name in sorted(self._records)]

    def get(self, name: str) -> ModelRecord | None:
        return self._records.get(name)

    def names_in(self, *states: State) -> list[str]:
        return [record.name for record in self.models() if record.state in states]

    def explain(self, name: str, version: str | None = None) -> str | None:
        """Return why a model or version is not served, in words that clients may read.
        The result is None if the model does not exist.
        """
        why = self._explain(name, version)
        return why and self.places.public(why)

    def _explain(self, name: str, version: str | None) -> str | None:
        record = self._records.get(name)
        if record is None:
            return self._newcomer.format(name) if self.places.holds(name) else None
        if version is None or not record.versions:
            return record.problem or record.absence
        for number, entry in record.versions.items():
            if str(number) == version:
                return entry.explanation or record.problem or record.absence
        return None

    def without_replica(self) -> list[str]:
        """Return the models that are ready and have no live replica at the moment."""
        return [
            record.name
            for record in self.models()
            if any(
                isinstance(loaded.runner, ModelRunner) and not loaded.runner.serving
                for loaded in record.serving.values()
            )
        ]

    def problems(self) -> dict[str, str]:
        """Return the models with a failed load, with reasons that clients may read."""
        public = self.places.public
        return {r.name: public(r.problem) for r in self.models() if r.problem}

    def users_of(self, name: str) -> list[ModelRecord]:
        """Return the ensembles that contain a model, directly or indirectly."""
        found: dict[str, ModelRecord] = {}
        names = [name]
        while names:
            part = names.pop()
            for record in self._records.values():
                ensemble = record.config.ensemble
                if record.name in found or ensemble is None:
                    continue
                if any(step.model == part for step in ensemble.step):
                    found[record.name] = record
                    names.append(record.name)
        return list(found.values())

    def needs_of(self, name: str) -> list[str]:
        """Return the models that a model needs, as its options say."""
        return self._ensembles.needs_of(name)

    # -- changing it

    def record(self, name: str) -> ModelRecord:
        """Return the record of a model; a new one if there is none."""
        return self._records.setdefault(name, ModelRecord(name))

    def forget(self, name: str) -> None:
        """Drop the record of a model that is not served."""
        record = self._records.get(name)
        if record is not None and not record.serving:
            del self._records[name]
            self._publish(record)

    async def load(
        self, source: ModelSource, *, lazily: bool = False, evict: bool = True
    ) -> None:
        """Load a model, or swap it, to the state of `source`.

        Unchanged versions stay, new and changed ones are loaded, and missing ones are
        unloaded. If one fails, the former version keeps serving, and the record has the
        reason. `lazily` offers new versions for loading on demand, but a version that
        replaces one in memory is loaded now. Without `evict`, versions that find no
        free memory are offered on demand too.
        """
        record = self.record(source.name)
        async with record.lock:
            record.is_pending = False
            record.reason = source.problem
            record.stamp = source.stamp
            if source.problem:
                return
            record.config = source.config
            changed = [v for v in source.versions if _is_new(record, v, source)]
            for version in source.versions:
                # the model serves, even if later loads failed
                if version not in changed:
                    record.versions[version.version].reason = ""
            later = [v for v in changed if lazily and not _is_loaded(record, v)]
            for version in changed:
                entry = record.versions.setdefault(
                    version.version, VersionRecord(version.version)
                )
                entry.source, entry.config = version, source.config
                entry.on(Event.OFFER if version in later else Event.LOAD)
            now = [v for v in changed if v not in later]
            leaving = await self._load_versions(record, now, evict=evict)
            leaving += self._swap(record, {v.version for v in source.versions})
            await self._drain(leaving)

    async def unload(self, name: str) -> None:
        """Stop serving a model, after its last request."""
        record = self._records[name]
        async with record.lock:
            left = [entry.on(Event.UNLOAD) for entry in record.versions.values()]
            record.reason = ""
            record.is_pending = False
            self._publish(record)
            await self._drain([loaded for loaded in left if loaded is not None])
            for entry in record.versions.values():
                if entry.state is State.DRAINING:
                    entry.on(Event.DRAINED)
        logger.info("model %s is unloaded", name)

    async def load_offered(self, record: ModelRecord, entry: VersionRecord) -> None:
        """Load a version that was offered on demand, if it is still needed."""
        async with record.lock:
            current = record.versions.get(entry.version) is entry
            if not current or not entry.is_on_demand or entry.source is None:
                return
            entry.on(Event.REQUEST)
            leaving = await self._load_versions(record, [entry.source])
            self._publish(record)
            await self._drain(leaving)

    async def save(self) -> None:
        """Save the state of all models to the places in their options."""
        for record in self.models():
            for loaded in record.serving.values():
                if loaded.config.save_outputs:
                    await self._unload_pool.run(loaded.save)

    def close(self) -> None:
        """Serve nothing from now on. The runners end with their devices."""
        self._closing = True
        for record in self.models():
            record.versions.clear()
            self._publish(record)

    # -- steps of these changes

    async def _load_versions(
        self,
        record: ModelRecord,
        versions: Sequence[VersionSource],
        *,
        evict: bool = True,
    ) -> list[LoadedModel]:
        """Load versions beside the serving ones; replaced versions go to `_drain`.

        They serve from the next `_publish` on, which must follow immediately.
        """
        loads = (self._load_one(record, v, evict) for v in versions)
        results = await asyncio.gather(*loads)
        leaving = []
        for version, result in zip(versions, results, strict=True):
            entry = record.versions[version.version]
            if isinstance(result, LoadedModel):
                replaced = entry.on(Event.LOADED, loaded=result)
                if replaced is not None:
                    leaving.append(replaced)
                continue
            why = _without_root(str(result), self.places, version)
            if isinstance(result, NoMemory) and not evict:
                entry.on(Event.NO_MEMORY)
            elif isinstance(result, LoadCutOff):
                event = Event.CUT_OFF if result.at_once else Event.FAIL
                entry.on(event, reason=why, passing=result.code)
            else:
                entry.on(Event.FAIL, reason=why)
        return leaving

    def _swap(self, record: ModelRecord, wanted: set[int]) -> list[LoadedModel]:
        """Make the versions `wanted` serve, and remove the others if any serve."""
        leaving = []
        if any(v in wanted for v in record.available):
            for number in [v for v in record.versions if v not in wanted]:
                gone = record.versions.pop(number)
                if gone.loaded is not None:
                    leaving.append(gone.loaded)
        self._publish(record)
        return leaving

    async def _load_one(
        self, record: ModelRecord, source: VersionSource, evict: bool
    ) -> LoadedModel | LoadError:
        entry = record.versions[source.version]
        config, reserved = entry.config, 0
        try:
            if config.ensemble is not None:
                return await self._ensembles.load(record, source)
            if config.models:
                await self._ensembles.require(record.name, config.models)
            ready = partial(self._loader.is_prepared, source, config)
            if source.is_onnx and not await self._pool.run(ready):
                # Long compilations run in another pool, so they delay no other model.
                prepare = partial(self._loader.prepare, source, config)
                await self._compile_pool.run(prepare)
            if self.budget.limit:
                measure = partial(self._loader.memory_of, source, config)
                reserved = await self._reserve(await self._pool.run(measure), evict)
            before = entry.loaded or record.default
            load = partial(self._loader.load, record.name, source, config, before)
            loaded = await self._pool.run(load)
        except LoadError as e:
            self.budget.give(reserved)
            return e
        except Exception as e:  # one model's fault must not stop the others
            self.budget.give(reserved)
            logger.exception("model %s/%s: unexpected", record.name, source.version)
            return LoadError(f"{type(e).__name__}: {e}; this is a bug")
        if isinstance(loaded.runner, ModelRunner):
            loop = asyncio.get_running_loop()
            blame = partial(self._blame, record, loaded)

            def on_failure(error: EngineError) -> None:
                if _is_running(loop):  # takes effect before its next request
                    blame(error)
                else:
                    loop.call_soon_threadsafe(blame, error)

            loaded.runner.on_failure(on_failure)
            if loaded.runner.failure is not None:  # it failed before that
                failure = str(loaded.runner.failure)
                await self._pool.run(loaded.runner.close)
                self.budget.give(reserved)
                return LoadError(failure)
        self.budget.correct(reserved, loaded.memory)
        if self._closing:
            loaded.runner.close()
            return LoadError("the gateway is shutting down")
        return loaded

    def _blame(
        self, record: ModelRecord, loaded: LoadedModel, error: EngineError
    ) -> None:
        """Stop serving a version that caused faults, until it is loaded again."""
        for entry in record.versions.values():
            if entry.loaded is loaded:
                logger.error("model %s/%s: %s", record.name, entry.version, error)
                why = _without_root(str(error), self.places, loaded.source)
                entry.on(Event.FAULT, reason=why)
                self._publish(record)
                leaving = asyncio.get_running_loop().create_task(self._drain([loaded]))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

    async def _reserve(self, size: int, evict: bool) -> int:
        """Reserve `size` bytes of the budget; unload idle models to make room if
        needed.

        Raises `LoadError`, or `NoMemory` if memory may be free at another time.
        """
        budget, deadline = self.budget, time.monotonic() + EVICTION_TIMEOUT
        if size > budget.limit:
            msg = (
                f"it needs about {size_text(size)}, but all models together may use "
                f"{size_text(budget.limit)} (--model-memory)"
            )
            raise LoadError(msg)
        while not budget.take(size):
            victim = self._least_recently_used() if evict else None
            if victim is not None:
                await self._evict(*victim)
            elif not evict or time.monotonic() > deadline:
                msg = (
                    f"it needs about {size_text(size)}, but models in use hold "
                    f"{size_text(budget.used)} of {size_text(budget.limit)} "
                    "(--model-memory)"
                )
                raise NoMemory(msg)
            else:
                await asyncio.sleep(EVICTION_TICK)
        return size

    def _least_recently_used(self) -> tuple[ModelRecord, VersionRecord] | None:
        """Return the version that has been idle longest; None if all are in use.

        A version with an open sequence is in use: its state is not in the model.
        """
        found: tuple[float, ModelRecord, VersionRecord] | None = None
        for record in self._records.values():
            if record.lock.locked():
                continue
            for entry in record.versions.values():
                loaded = entry.loaded
                if loaded is None or entry.source is None or not loaded.memory:
                    continue
                stats = self._metrics.total(record.name, loaded.version)
                if loaded.runner.in_flight or self._is_pending(record):
                    continue
                if isinstance(loaded.scheduler, SequenceScheduler) and loaded.scheduler:
                    continue
                used = max(stats.last_inference, loaded.loaded_at)
                if found is None or used < found[0]:
                    found = (used, record, entry)
        return found[1:] if found is not None else None

    def _is_pending(self, record: ModelRecord) -> bool:
        """Return whether requests to it, or to an ensemble that contains it, are in
        flight.
        """
        return any(
            self._metrics.total(user.name, loaded.version).pending
            for user in (record, *self.users_of(record.name))
            for loaded in user.serving.values()
        )

    async def _evict(self, record: ModelRecord, entry: VersionRecord) -> None:
        """Take an idle version out of memory.

        The next request to it, or to an ensemble that contains it, loads it again.
        """
        loaded = entry.on(Event.EVICT)
        assert loaded is not None
        for user in self.users_of(record.name):
            for version in user.versions.values():
                if version.loaded is not None:
                    version.on(Event.EVICT)
            self._publish(user)
        self._publish(record)
        logger.info("evicted model %s/%s", record.name, entry.version)
        await self._drain([loaded])

    def _publish(self, record: ModelRecord) -> None:
        entries = [
            ModelEntry(
                loaded.spec,
                loaded.runner,
                self._metrics.model(record.name, loaded.version),
                timeout=loaded.config.timeout,
                scheduler=loaded.scheduler,
                max_timeout=loaded.config.max_timeout,
                level_timeouts=timeouts(loaded.runner.config, loaded.config.priority),
                limits=self._table.limits,
                regions=self._table.regions,
            )
            for loaded in record.serving.values()
        ]
        default = str(record.default_version)
        served = {loaded.version: loaded for loaded in record.serving.values()}
        routes = served[default].routes.routes if default in served else ()
        self._table.publish(record.name, entries, default=default, routes=routes)

    async def _drain(self, leaving: Iterable[LoadedModel]) -> None:
        """Close runners that get no new requests.

        A runner closes when no request is in flight and streams have had their last
        response, or after the drain timeout.
        """
        leaving = list(leaving)
        await self._settled([loaded.runner for loaded in leaving])
        for loaded in leaving:
            end = time.monotonic() + self._drain_timeout
            if isinstance(loaded.scheduler, StepScheduler):
                await loaded.scheduler.drain(self._drain_timeout)
            drain = partial(loaded.runner.drain, max(0.0, end - time.monotonic()))
            drained = await self._unload_pool.run(drain)
            await self._unload_pool.run(loaded.save)
            if drained:
                await self._unload_pool.run(loaded.runner.close)
            else:
                logger.warning("closing %r with requests in flight", loaded.runner)
                # Requests must be failed in this thread, which does nothing else
                # meanwhile.
                loaded.runner.close()
            self.budget.give(loaded.memory)

    def __repr__(self) -> str:
        ready = len(self.names_in(State.READY))
        return f"<ModelRepository {self.places} {ready}/{len(self._records)} ready>"


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this is the loop's thread, and the loop runs."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _without_root(text: str, places: ModelPlaces, version: VersionSource) -> str:
    """Return a reason as any client may see it: no path from outside the repository."""
    folders = [version.folder and version.folder.parent, places.folder]
    for folder in (*folders, *(file.parent for file in version.files)):
        if folder is not None:
            text = text.replace(f"{folder.resolve()}/", "")
    return text


def _is_loaded(record: ModelRecord, version: VersionSource) -> bool:
    entry = record.versions.get(version.version)
    return entry is not None and entry.loaded is not None


def _is_new(record: ModelRecord, version: VersionSource, source: ModelSource) -> bool:
    """Return whether a version must be loaded or offered before `source` is served."""
    entry = record.versions.get(version.version)
    if entry is None or entry.loaded is None:
        return True
    runner = entry.loaded.runner
    if isinstance(runner, EnsembleRunner) and not runner.is_current:
        return True  # its members have changed or are missing
    return not entry.loaded.is_from(version, source.config)
