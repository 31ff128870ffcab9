"""`FolderLoads`: models as their folders and options say, put into the repository."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from app.background import DaemonPool
from app.config.model_options import Origin
from app.repository.control.remote_files import RemoteFiles
from app.repository.model_sources import RemoteUrl
from app.repository.places import ModelPlaces
from app.repository.records import (
    LoadOffered,
    ModelRecord,
    ModelRecords,
    RepositoryError,
    VersionRecord,
)
from app.repository.scan import scan_model
from app.repository.source import ScannedModel

logger = logging.getLogger(__name__)


class LoadsModels(Protocol):
    """Loads models, or swaps them (`app.repository.repository`)."""

    async def load(
        self,
        scanned: ScannedModel,
        load_offered: LoadOffered,
        *,
        lazily: bool = False,
        evict: bool = True,
    ) -> None: ...

    async def load_offered(self, record: ModelRecord, entry: VersionRecord) -> None: ...


@dataclass(eq=False, repr=False)
class FolderLoads:
    """Scans the folders of models, and loads what is there. For the event loop's
    thread.

    `lazily` offers new versions for loading on demand.
    """

    _records: ModelRecords
    _places: ModelPlaces
    _repository: LoadsModels
    remote: RemoteFiles
    _pool: DaemonPool
    lazily: bool
    _is_ending: bool = field(default=False, init=False)

    def begin_end(self) -> None:
        """Stop downloads, and note that the server is shutting down, so an interrupted
        load is not a failure.

        May be called from a signal handler.
        """
        self._is_ending = True
        self.remote.stop()

    async def scan(
        self,
        name: str,
        root: Path | None = None,
        config: str | None = None,
        *,
        looks: bool = False,
    ) -> ScannedModel:
        """Return the model in the folder. A remote model is downloaded first, if
        `looks` is set or the cache lacks it.

        Raises `RepositoryError` if it does not exist.
        """
        scan = partial(self._places.scan, name, config)
        if root is not None:
            origin = Origin("the load request", is_trusted=False)
            scan = partial(scan_model, root, name, config, origin=origin)
        scanned = await self._pool.run(scan)
        url = None if scanned is None else scanned.url
        if url is not None and (looks or not await self.remote.has(url)):
            await self.remote.fetch(name, url)
            scanned = await self._pool.run(scan)
        if scanned is None:
            msg = (
                f"failed to load '{name}', failed to poll from model repository: "
                f"there is no such model in it"
            )
            raise RepositoryError(msg, found=False)
        return scanned

    async def scan_all(self) -> dict[str, ScannedModel]:
        """Return all models in the folder."""
        return await self._pool.run(self._places.scan_all)

    async def put(self, scanned: ScannedModel, *, on_request: bool = False) -> None:
        """Load a model; unload others only `on_request`. The record has the errors."""
        await self._load(
            scanned, lazily=self.lazily and not on_request, evict=on_request
        )
        await self._settle(self._records.record(scanned.name), lazily=self.lazily)

    async def follow(self, name: str, scanned: ScannedModel) -> None:
        """Load a model whose files have changed; log the outcome."""
        await self._load(scanned, lazily=self.lazily)
        record = self._records.record(name)
        await self._settle(record, lazily=self.lazily)
        if record.problem:
            self.log_failure(name, record.problem)
        else:
            logger.info("loaded model '%s', %s", name, versions_text(record.available))

    async def follow_remote(self, name: str, url: RemoteUrl) -> None:
        """Load a remote model whose files have arrived, if they have changed, and
        remove the replaced ones from the cache.
        """
        record = self._records.record(name)
        scanned = await self._pool.run(partial(self._places.scan, name))
        if (
            scanned is None
            or scanned.url != url
            or scanned.problem == record.reason != ""
        ):
            return
        await self.follow(name, scanned)
        await self.remote.drop_unused(url)

    async def _load(
        self, scanned: ScannedModel, *, lazily: bool, evict: bool = True
    ) -> None:
        load = self._repository.load
        await load(scanned, self._load_offered, lazily=lazily, evict=evict)

    async def _load_offered(self, record: ModelRecord, entry: VersionRecord) -> None:
        """Load a version for the requests that wait for it."""
        await self._repository.load_offered(record, entry)
        if not entry.passing:
            await self._settle(record, lazily=False)

    async def _settle(self, record: ModelRecord, *, lazily: bool) -> None:
        """Keep in the cache the files of a remote model that serve after a load. If
        none serve, load the former files.
        """
        url = record.url
        if url is None:
            return
        if not record.problem and record.serving:
            await self.remote.confirm(record, url)
        if not record.problem or record.available:
            return
        if not await self.remote.step_back(url):
            return
        reasons = [v.reason for v in record.versions.values() if v.reason]
        problem = record.reason or reasons[0]
        scanned = await self.scan(record.name)
        await self._load(scanned, lazily=lazily, evict=False)
        if not record.problem:
            logger.warning("model %s: serving its former files", record.name)
            for version in record.versions.values():
                version.fail(problem)

    def log_failure(self, name: str, problem: str) -> None:
        """Log why a model could not be loaded."""
        if self._is_ending:
            logger.info("'%s' is not loaded: the server ends", name)
        else:
            logger.error("failed to load '%s': %s", name, problem)


def versions_text(numbers: Iterable[int]) -> str:
    shown = sorted(numbers)
    return f"version{'s' * (len(shown) != 1)} {', '.join(map(str, shown)) or 'none'}"
