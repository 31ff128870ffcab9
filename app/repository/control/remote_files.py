"""`RemoteFiles`: the files of remote models, from their sources to the cache.

`RemoteWatch` polls the sources for changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from app.background import DaemonPool
from app.repository.model_sources import (
    FetchStopped,
    Looks,
    RemoteCaches,
    RemoteError,
    RemoteModels,
    RemoteUrl,
)
from app.repository.records import ModelRecord, ModelRecords
from app.repository.source import ScannedModel

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class RemoteFiles:
    """The files of the remote models in the records. For the event loop's thread.

    `_caches` is None if there are none. `_pool` reads and writes them. `_fetch_pool`
    runs the downloads.
    """

    _records: ModelRecords
    _caches: RemoteCaches | None
    _pool: DaemonPool
    _fetch_pool: DaemonPool

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

    def stop(self) -> None:
        """Stop the downloads. May be called from a signal handler."""
        if self._caches is not None:
            self._caches.stop()

    def looks_at(self, url: RemoteUrl) -> Looks:
        """Return the state of the polls for a URL."""
        return self._remote(url).looks_at(url)

    def _remote(self, url: RemoteUrl) -> RemoteModels:
        """Return the models of the source that knows a URL."""
        assert self._caches is not None
        return self._caches.of(url)


@dataclass(eq=False, repr=False)
class RemoteWatch:
    """Watches the URLs of remote models, every `seconds`. For the event loop's thread.

    `_use` loads the files that have arrived. If `polls` is false, the watch only
    retries failed downloads.
    """

    _remote: RemoteFiles
    _use: Callable[[str, RemoteUrl], Awaitable[None]]
    polls: bool
    seconds: float
    _watching: dict[str, tuple[RemoteUrl, asyncio.Task[None]]] = field(
        default_factory=dict, init=False
    )

    def looks(self) -> dict[str, Looks]:
        """Return the state of the polls, by the name of the model."""
        watched = self._watching.items()
        return {name: self._remote.looks_at(url) for name, (url, _) in watched}

    def stop(self) -> None:
        """Poll no more."""
        for _, task in self._watching.values():
            task.cancel()

    def follow(
        self, name: str, scanned: ScannedModel | None, *, at_once: bool = False
    ) -> None:
        """Poll a model at its present URL, if it has one, and forget its former URL."""
        url = scanned.url if scanned is not None else None
        before = self._watching.get(name)
        if before is not None and (before[0] != url or before[1].done()):
            before[1].cancel()
            del self._watching[name]
        if url is not None and name not in self._watching:
            watch = self._watch(name, url, at_once=at_once)
            self._watching[name] = url, asyncio.get_running_loop().create_task(watch)

    async def _watch(self, name: str, url: RemoteUrl, *, at_once: bool) -> None:
        """Use changes of remote models if the mode polls; in any mode, retry failed
        downloads.
        """
        await self._remote.drop_unused(url)
        pause = 0.0 if at_once else self.seconds
        while self.polls or not await self._remote.has(url):
            await asyncio.sleep(pause)
            pause = self.seconds
            try:
                await self._look(name, url)
            except FetchStopped:
                return
            except Exception:
                logger.exception("model %s: unexpected", name)

    async def _look(self, name: str, url: RemoteUrl) -> None:
        """Serve the present files if they have changed. Raises `FetchStopped`."""
        if await self._remote.fetch(name, url) or not await self._remote.has(url):
            # A load that has begun ends, even if the model is watched no more.
            await asyncio.shield(self._use(name, url))
