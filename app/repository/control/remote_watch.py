"""`RemoteWatch`: the polls for changes of remote models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from app.repository.control.remote_files import RemoteFiles
from app.repository.model_sources import FetchStopped, Looks, RemoteUrl
from app.repository.source import ModelSource

logger = logging.getLogger(__name__)


class RemoteWatch:
    """Watches the URLs of remote models, every `seconds`. For the event loop's thread.

    `use` loads the files that have arrived. If `polls` is false, the watch only retries
    failed downloads.
    """

    def __init__(
        self,
        remote: RemoteFiles,
        use: Callable[[str, RemoteUrl], Awaitable[None]],
        *,
        polls: bool,
        seconds: float,
    ) -> None:
        self._remote = remote
        self._use = use
        self._polls = polls
        self._seconds = seconds
        self._watching: dict[str, tuple[RemoteUrl, asyncio.Task[None]]] = {}

    def looks(self) -> dict[str, Looks]:
        """Return the state of the polls, by the name of the model."""
        watched = self._watching.items()
        return {name: self._remote.looks_at(url) for name, (url, _) in watched}

    def stop(self) -> None:
        """Poll no more."""
        for _, task in self._watching.values():
            task.cancel()

    def follow(
        self, name: str, source: ModelSource | None, *, at_once: bool = False
    ) -> None:
        """Poll a model at its present URL, if it has one, and forget its former URL."""
        url = source.url if source is not None else None
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
        pause = 0.0 if at_once else self._seconds
        while self._polls or not await self._remote.has(url):
            await asyncio.sleep(pause)
            pause = self._seconds
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
