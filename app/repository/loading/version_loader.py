"""`VersionLoader`: the loading of one version of a model, in threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from app.background import DaemonPool
from app.repository.load_errors import LoadCutOff, LoadError
from app.repository.loader import ModelLoader
from app.repository.loading.ensemble_loader import EnsembleLoader
from app.repository.loading.eviction import Eviction, NoMemory
from app.repository.memory_budget import MemoryBudget
from app.repository.model_life import Event
from app.repository.places import ModelPlaces
from app.repository.records import LoadedModel, ModelRecord, VersionRecord
from app.repository.served_models import ServedModels
from app.repository.source import VersionSource
from engine import EngineError, ModelRunner

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class VersionLoader:
    """Loads versions beside those that serve. For the event loop's thread.

    The memory of a loaded version comes from `_budget`, by `_eviction` if it has a
    limit. `_pool` loads and `_compile_pool` compiles, because a long compilation must
    not delay other models.
    """

    _places: ModelPlaces
    _loader: ModelLoader
    _ensembles: EnsembleLoader
    _budget: MemoryBudget
    _eviction: Eviction
    _served: ServedModels
    _pool: DaemonPool
    _compile_pool: DaemonPool
    _draining: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _closing: bool = field(default=False, init=False)

    def close(self) -> None:
        """Let loads that are under way fail."""
        self._closing = True

    async def load(
        self,
        record: ModelRecord,
        versions: Sequence[VersionSource],
        *,
        evict: bool = True,
    ) -> list[LoadedModel]:
        """Load versions; return the replaced ones, which are to be drained.

        They serve once the record is published, which must follow immediately. A
        version that was found at fault before that has failed to load.
        """
        now = {version.version for version in versions}
        beside = [entry for v, entry in record.versions.items() if v not in now]
        loads = [
            self._load_one(record, record.versions[v.version], v, evict, beside)
            for v in versions
        ]
        results = await asyncio.gather(*loads)
        to_drain = []
        for version, result in zip(versions, results, strict=True):
            if isinstance(result, LoadedModel):
                result = self._usable(record, result)
            entry = record.versions.get(version.version)
            if entry is None:  # the gateway has shut down
                continue
            if isinstance(result, LoadedModel):
                replaced = entry.on(Event.LOADED, loaded=result)
                if replaced is not None:
                    to_drain.append(replaced)
                continue
            why = _without_root(str(result), self._places, version)
            if isinstance(result, NoMemory) and not evict:
                entry.on(Event.NO_MEMORY)
            elif isinstance(result, LoadCutOff):
                event = Event.CUT_OFF if result.at_once else Event.FAIL
                entry.on(event, reason=why, passing=result.code)
            else:
                entry.on(Event.FAIL, reason=why)
        return to_drain

    async def _load_one(
        self,
        record: ModelRecord,
        entry: VersionRecord,
        source: VersionSource,
        evict: bool,
        beside: Sequence[VersionRecord],
    ) -> LoadedModel | LoadError:
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
            if self._budget.limit:
                measure = partial(self._loader.memory_of, source, config)
                size = await self._pool.run(measure)
                reserved = await self._eviction.reserve(size, evict, beside)
            before = entry.loaded or record.default
            load = partial(self._loader.load, record.name, source, config, before)
            loaded = await self._pool.run(load)
        except LoadError as e:
            self._budget.release(reserved)
            return e
        except Exception as e:  # one model's fault must not stop the others
            self._budget.release(reserved)
            logger.exception("model %s/%s: unexpected", record.name, source.version)
            return LoadError(f"{type(e).__name__}: {e}; this is a bug")
        self._budget.correct(reserved, loaded.memory)
        return loaded

    def _usable(
        self, record: ModelRecord, loaded: LoadedModel
    ) -> LoadedModel | LoadError:
        """Return the version if it can serve from now on; else end it."""
        if self._closing:
            loaded.runner.close()
            return LoadError("the gateway is shutting down")
        failure = _subscribe(loaded, partial(self._blame, record, loaded))
        if failure is None:
            return loaded
        self._let_go(loaded)
        return LoadError(str(failure))

    def _blame(
        self, record: ModelRecord, loaded: LoadedModel, error: EngineError
    ) -> None:
        """Stop serving a version that caused faults, until it is loaded again."""
        for entry in record.versions.values():
            if entry.loaded is loaded:
                logger.error("model %s/%s: %s", record.name, entry.version, error)
                why = _without_root(str(error), self._places, loaded.source)
                entry.on(Event.FAULT, reason=why)
                self._served.publish(record)
                self._let_go(loaded)

    def _let_go(self, loaded: LoadedModel) -> None:
        """Drain and close a version in the background."""
        drain = self._served.drain([loaded])
        draining = asyncio.get_running_loop().create_task(drain)
        self._draining.add(draining)
        draining.add_done_callback(self._draining.discard)


def _subscribe(
    loaded: LoadedModel, on_fault: Callable[[EngineError], None]
) -> EngineError | None:
    """Let `on_fault` receive the faults of a version, in the running event loop's
    thread; return its fault if it has failed already.
    """
    if not isinstance(loaded.runner, ModelRunner):
        return None
    loop = asyncio.get_running_loop()

    def on_failure(error: EngineError) -> None:
        if _is_running(loop):  # takes effect before its next request
            on_fault(error)
        else:
            loop.call_soon_threadsafe(on_fault, error)

    loaded.runner.health.on_failure(on_failure)
    return loaded.runner.failure


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
