"""The models that are served: loading, swapping and unloading them while others run.

Everything here runs on the event loop's thread except the loading itself. Operations on
one model happen one after the other; different models do not wait for each other. A
version that is loaded again is loaded beside the old one, takes its place at once when
it is ready, and the old one is closed when its last request has been answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from app.background import DaemonPool
from app.loader import LoadedModel, LoadError, ModelLoader
from app.metrics import MetricsRegistry
from app.scan import ModelSource, VersionSource, scan_model, scan_names
from app.table import ModelEntry, ModelTable

logger = logging.getLogger(__name__)


UNLOADED = "it was unloaded"


class State(Enum):
    """The states of a model version, in the protocol's words."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class RepositoryError(Exception):
    """A load or unload that did not succeed; `found` is False for an unknown model."""

    def __init__(self, message: str, *, found: bool = True) -> None:
        super().__init__(message)
        self.found = found


@dataclass(slots=True)
class VersionRecord:
    """One version, loaded or not. `loaded` is what serves now, if anything does."""

    version: int
    state: State = State.UNAVAILABLE
    reason: str = ""
    loaded: LoadedModel | None = None


@dataclass(slots=True)
class ModelRecord:
    """Everything known about one model of the repository."""

    name: str
    versions: dict[int, VersionRecord] = field(default_factory=dict)
    reason: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def serving(self) -> dict[int, LoadedModel]:
        records = sorted(self.versions.items())
        return {v: r.loaded for v, r in records if r.loaded is not None}

    @property
    def default(self) -> LoadedModel | None:
        """What answers requests that name no version: the highest that is loaded."""
        serving = self.serving
        return serving[max(serving)] if serving else None

    @property
    def state(self) -> State:
        """The best that any version has to offer."""
        states = {record.state for record in self.versions.values()}
        for state in (State.READY, State.LOADING, State.UNLOADING):
            if state in states:
                return state
        return State.UNAVAILABLE

    @property
    def absence(self) -> str:
        """Why it is not served, although nothing has gone wrong with it."""
        if self.state is State.UNAVAILABLE:
            return UNLOADED
        return f"it is {self.state.value.lower()}"

    @property
    def problem(self) -> str:
        """What has gone wrong with the model or a version of it; empty if nothing."""
        if self.reason:
            return self.reason
        bad = (r for r in self.versions.values() if r.reason not in ("", UNLOADED))
        return "; ".join(f"version {r.version}: {r.reason}" for r in bad)


class ModelRepository:
    """The models of one folder, and their states."""

    def __init__(
        self,
        root: Path,
        loader: ModelLoader,
        pool: DaemonPool,
        table: ModelTable,
        metrics: MetricsRegistry,
        *,
        drain_timeout: float = 30.0,
    ) -> None:
        self.root = root
        self._loader = loader
        self._pool = pool
        self._table = table
        table.explain = self.explain
        self._metrics = metrics
        self._drain_timeout = drain_timeout
        self._records: dict[str, ModelRecord] = {}
        self._starting = False
        self._closing = False

    def models(self) -> list[ModelRecord]:
        """All known models, by name."""
        return [self._records[name] for name in sorted(self._records)]

    def get(self, name: str) -> ModelRecord | None:
        return self._records.get(name)

    def names_in(self, state: State) -> list[str]:
        return [record.name for record in self.models() if record.state is state]

    def explain(self, name: str) -> str | None:
        """Why a model is not served; None if there is no such model."""
        record = self._records.get(name)
        if record is None:
            return None
        return record.problem or record.absence

    def problems(self) -> dict[str, str]:
        """The models of which something failed to load, with the reasons."""
        return {r.name: r.problem for r in self.models() if r.problem}

    async def load_all(self) -> None:
        """Loads every model of the folder; failures are recorded, not raised.

        Raises OSError if the folder cannot be listed.
        """
        self._starting = True
        names = await self._pool.run(lambda: scan_names(self.root))
        for name in names:
            record = self._record(name)
            record.versions[0] = VersionRecord(0, State.LOADING)
        await asyncio.gather(*(self._load_quietly(name) for name in names))
        self._starting = False

    async def load(self, name: str) -> ModelRecord:
        """Brings a model to what the folder holds now. Raises `RepositoryError`.

        Versions that are served and unchanged stay as they are; new and changed ones
        are loaded; those no longer there are unloaded. If one fails, what was served
        before is served on.
        """
        source = await self._pool.run(lambda: scan_model(self.root, name))
        known = self._records.get(name)
        if source is None:
            if known is not None:
                known.versions.pop(0, None)
            msg = (
                f"failed to load '{name}', failed to poll from model repository: "
                f"there is no such model in it"
            )
            raise RepositoryError(msg, found=False)
        record = self._record(name)
        async with record.lock:
            await self._bring_up(record, source)
        if not self._starting:
            logger.info("model %s is loaded: %s", name, sorted(record.serving))
        if record.problem:
            raise RepositoryError(f"failed to load '{name}': {record.problem}")
        return record

    async def unload(self, name: str) -> ModelRecord:
        """Stops serving a model, after its last request. Raises `RepositoryError`."""
        record = self._records.get(name)
        if record is None:
            msg = f"failed to unload '{name}': there is no such model"
            raise RepositoryError(msg, found=False)
        async with record.lock:
            leaving = list(record.serving.values())
            for version in record.versions.values():
                busy = version.loaded is not None
                version.state = State.UNLOADING if busy else State.UNAVAILABLE
                version.loaded = None
                version.reason = ""
            record.reason = ""
            self._publish(record)
            await self._retire(leaving)
            for version in record.versions.values():
                version.state = State.UNAVAILABLE
                version.reason = UNLOADED
        logger.info("model %s is unloaded", name)
        return record

    def close(self) -> None:
        """Serves nothing from now on. The runners end with their devices."""
        self._closing = True
        for record in self.models():
            record.versions.clear()
            self._publish(record)

    def _record(self, name: str) -> ModelRecord:
        return self._records.setdefault(name, ModelRecord(name))

    async def _load_quietly(self, name: str) -> None:
        try:
            await self.load(name)
        except RepositoryError as e:
            logger.error("%s", e)
        except OSError as e:
            self._record(name).reason = f"cannot be read: {e}"
            logger.error("failed to load '%s': %s", name, e)

    async def _bring_up(self, record: ModelRecord, source: ModelSource) -> None:
        record.reason = source.problem
        record.versions.pop(0, None)
        if source.problem:
            return
        wanted = {v.version: v for v in source.versions}
        changed = [v for v in source.versions if self._is_new(record, v, source)]
        for version in changed:
            entry = record.versions.setdefault(
                version.version, VersionRecord(version.version)
            )
            entry.state = State.READY if entry.loaded is not None else State.LOADING
        results = await asyncio.gather(
            *(self._load_version(source, version) for version in changed)
        )
        leaving = []
        for version, result in zip(changed, results, strict=True):
            entry = record.versions[version.version]
            if isinstance(result, LoadedModel):
                if entry.loaded is not None:
                    leaving.append(entry.loaded)
                entry.loaded, entry.state, entry.reason = result, State.READY, ""
            else:
                ready = entry.loaded is not None
                entry.state = State.READY if ready else State.UNAVAILABLE
                entry.reason = str(result).replace(f"{self.root.resolve()}/", "")
        if any(entry.loaded for v, entry in record.versions.items() if v in wanted):
            for number in [v for v in record.versions if v not in wanted]:
                gone = record.versions.pop(number)
                if gone.loaded is not None:
                    leaving.append(gone.loaded)
        self._publish(record)
        await self._retire(leaving)

    def _is_new(
        self, record: ModelRecord, version: VersionSource, source: ModelSource
    ) -> bool:
        entry = record.versions.get(version.version)
        loaded = entry.loaded if entry is not None else None
        if loaded is None or loaded.config != source.config:
            return True
        try:
            return loaded.fingerprint != version.fingerprint()
        except OSError:
            return True

    async def _load_version(
        self, source: ModelSource, version: VersionSource
    ) -> LoadedModel | LoadError:
        try:
            loaded = await self._pool.run(
                lambda: self._loader.load(source.name, version, source.config)
            )
        except LoadError as e:
            return e
        if self._closing:
            loaded.runner.close()
            return LoadError("the gateway is shutting down")
        return loaded

    def _publish(self, record: ModelRecord) -> None:
        self._table.publish(
            record.name,
            [
                ModelEntry(
                    loaded.spec,
                    loaded.runner,
                    self._metrics.model(record.name, loaded.version),
                    timeout=loaded.config.timeout,
                )
                for loaded in record.serving.values()
            ],
        )

    async def _retire(self, leaving: Iterable[LoadedModel]) -> None:
        """Closes runners that get no new requests, when they have nothing in flight."""
        for loaded in leaving:
            if await self._pool.run(partial(loaded.runner.drain, self._drain_timeout)):
                await self._pool.run(loaded.runner.close)
            else:
                logger.warning("%r is closed with requests in flight", loaded.runner)
                # Requests must be failed in this thread; the price is that nothing
                # else is done meanwhile.
                loaded.runner.close()

    def __repr__(self) -> str:
        ready = len(self.names_in(State.READY))
        return f"<ModelRepository {self.root} {ready}/{len(self._records)} ready>"
