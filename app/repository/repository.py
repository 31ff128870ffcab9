"""The served models: loading, swapping and unloading them while others run.

Everything here runs on the event loop's thread except the loading itself. Operations on
one model happen one after the other. Different models do not wait for each other. A new
version is loaded beside the old one and replaces it when it is ready. The old one is
closed after its last request is answered.

`app/repository/control/model_control.py` decides which models are loaded, and when.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.repository.model_life import Event, State
from app.repository.records import (
    LoadedModel,
    LoadOffered,
    ModelRecord,
    ModelRecords,
    VersionRecord,
)
from app.repository.served_models import ServedModels
from app.repository.source import ScannedModel, VersionSource
from app.serving.ensemble import Ensemble

logger = logging.getLogger(__name__)


class LoadsVersions(Protocol):
    """Loads versions beside those that serve (`loading/version_loader.py`)."""

    async def load(
        self,
        record: ModelRecord,
        versions: Sequence[VersionSource],
        *,
        evict: bool = True,
    ) -> list[LoadedModel]: ...

    def close(self) -> None: ...


@dataclass(eq=False, repr=False)
class ModelRepository:
    """Changes the versions of models that serve: it loads, swaps and unloads them."""

    _records: ModelRecords
    _loader: LoadsVersions
    _served: ServedModels

    def forget(self, name: str) -> None:
        """Drop the record of a model that is not served."""
        record = self._records.get(name)
        if record is not None and not record.serving:
            self._records.remove(name)
            self._served.publish(record)

    async def load(
        self,
        scanned: ScannedModel,
        load_offered: LoadOffered | None = None,
        *,
        lazily: bool = False,
        evict: bool = True,
    ) -> None:
        """Load a model, or swap it, to the state of `scanned`.

        Unchanged versions stay, new and changed ones are loaded, and missing ones are
        unloaded. If one fails, the former version keeps serving, and the record has the
        reason. `lazily` offers new versions for loading on demand, but a version that
        replaces one in memory is loaded now. Without `evict`, versions that find no
        free memory are offered on demand too. `load_offered` loads what is offered,
        by default the method of this name.
        """
        record = self._records.record(scanned.name)
        async with record.lock:
            if self._records.get(scanned.name) is not record:  # a poll has removed it
                await self.load(scanned, load_offered, lazily=lazily, evict=evict)
                return
            record.read(scanned)
            if scanned.problem:
                return
            changed = [v for v in scanned.versions if _is_new(record, v, scanned)]
            for version in scanned.versions:
                # the model serves, even if later loads failed
                if version not in changed:
                    record.versions[version.version].fail("")
            later = [v for v in changed if lazily and not _is_loaded(record, v)]
            for version in changed:
                entry = record.version(
                    version.version, load_offered or self.load_offered
                )
                entry.take_sources(version, scanned.config)
                entry.on(Event.OFFER if version in later else Event.LOAD)
            if record.serving:  # requests need not wait for these loads
                self._served.publish(record)
            now = [v for v in changed if v not in later]
            to_drain = await self._loader.load(record, now, evict=evict)
            to_drain += self._swap(record, {v.version for v in scanned.versions})
            await self._served.drain(to_drain)

    async def unload(self, name: str) -> None:
        """Stop serving a model, after its last request."""
        record = self._records.get(name)
        assert record is not None
        async with record.lock:
            if self._records.get(name) is not record:  # a poll has removed it
                return
            left = [entry.on(Event.UNLOAD) for entry in record.versions.values()]
            record.fail("")
            record.settle()
            self._served.publish(record)
            await self._served.drain([loaded for loaded in left if loaded is not None])
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
            to_drain = await self._loader.load(record, [entry.source])
            self._served.publish(record)
            await self._served.drain(to_drain)

    async def save(self) -> None:
        """Save the state of all models to the places in their options."""
        for record in self._records.all():
            for loaded in record.serving.values():
                if loaded.config.save_outputs:
                    await self._served.save(loaded)

    def close(self) -> None:
        """Serve nothing from now on. The runners end with their devices."""
        self._loader.close()
        for record in self._records.all():
            record.versions.clear()
            self._served.publish(record)

    def _swap(self, record: ModelRecord, wanted: set[int]) -> list[LoadedModel]:
        """Make the versions `wanted` serve, and remove the others if any serve."""
        to_drain = []
        if any(v in wanted for v in record.available):
            for number in [v for v in record.versions if v not in wanted]:
                gone = record.versions.pop(number)
                if gone.loaded is not None:
                    to_drain.append(gone.loaded)
        self._served.publish(record)
        return to_drain

    def __repr__(self) -> str:
        return f"<ModelRepository {self._records!r}>"


def _is_loaded(record: ModelRecord, version: VersionSource) -> bool:
    entry = record.versions.get(version.version)
    return entry is not None and entry.loaded is not None


def _is_new(record: ModelRecord, version: VersionSource, scanned: ScannedModel) -> bool:
    """Return whether a version must be loaded or offered before `scanned` is served."""
    entry = record.versions.get(version.version)
    if entry is None or entry.loaded is None:
        return True
    runner = entry.loaded.runner
    if isinstance(runner, Ensemble) and not runner.is_current:
        return True  # its members have changed or are missing
    return not entry.loaded.is_from(version, scanned.config)
