"""`RemoteFiles`: the files of remote models, from their sources to the cache."""

from __future__ import annotations

import logging
from functools import partial

from app.background import DaemonPool
from app.repository.model_record import ModelRecord
from app.repository.model_sources import (
    FetchStopped,
    Looks,
    RemoteError,
    RemoteModels,
    RemoteUrl,
)
from app.repository.records import ModelRecords

logger = logging.getLogger(__name__)


class RemoteFiles:
    """The files of the remote models in the records. For the event loop's thread.

    `pool` reads and writes the cache. `fetch_pool` runs the downloads.
    """

    def __init__(
        self, records: ModelRecords, pool: DaemonPool, fetch_pool: DaemonPool
    ) -> None:
        self._records = records
        self._pool = pool
        self._fetch_pool = fetch_pool

    async def has(self, url: RemoteUrl) -> bool:
        """Return whether the cache has the URL."""
        folder = await self._pool.run(partial(self._remote(url).folder_of, url))
        return folder is not None

    async def fetch(self, name: str, url: RemoteUrl) -> bool:
        """Download a URL; return whether the model in the cache has changed.

        Raises `FetchStopped`.
        """
        remote = self._remote(url)
        self._records.record(name).fetch_from(partial(remote.news_of, url))
        try:
            call = partial(remote.fetch, f"model {name}", url)
            return await self._fetch_pool.run(call)
        except FetchStopped:
            raise
        except RemoteError:
            return False  # the scan puts the reason into its record
        except Exception:
            logger.exception("model %s: unexpected", name)
            return False

    async def confirm(self, record: ModelRecord, url: RemoteUrl) -> None:
        """Keep in the cache the files that serve after a load."""
        files = [f for s in record.sources for f in s.files]
        await self._pool.run(partial(self._remote(url).confirm, url, files))

    async def step_back(self, url: RemoteUrl) -> bool:
        """Use the former files of a URL again; return whether there are any."""
        return await self._pool.run(partial(self._remote(url).step_back, url))

    async def drop_unused(self, url: RemoteUrl) -> None:
        """Remove from the cache the files that no model uses any more."""
        remote = self._remote(url)
        models = self._records.all()
        used = [f for model in models for s in model.sources for f in s.files]
        await self._pool.run(partial(remote.drop_unused, url, used))

    def looks_at(self, url: RemoteUrl) -> Looks:
        """Return the state of the polls for a URL."""
        return self._remote(url).looks_at(url)

    def _remote(self, url: RemoteUrl) -> RemoteModels:
        """Return the models of the source that knows a URL."""
        remote = self._records.places.remote
        assert remote is not None
        return remote.of(url)
