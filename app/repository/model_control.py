"""Modes of `--model-control-mode`: when models are loaded, and by whom.

- ``managed``: all at the start, then by request.
- ``none``: all at the start, and nothing after that.
- ``poll``: the content of the folder, scanned repeatedly.
- ``explicit``: those named by `--load-model`, then by request.

The last three are Triton's. Polling uses a change only if two scans in a row find the
same content, so it skips files that are still being written. Files that are renamed
into place are complete in any case.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from enum import Enum
from functools import partial
from pathlib import Path

from app.background import DaemonPool
from app.config.file_stamps import Stamp
from app.config.model_options import Origin
from app.errors import HttpError
from app.repository.load_overrides import LoadOverrides
from app.repository.model_record import NEVER_LOADED, ModelRecord, RepositoryError
from app.repository.model_sources import (
    FetchStopped,
    Looks,
    RemoteError,
    RemoteModels,
    RemoteUrl,
)
from app.repository.repository import ModelRepository
from app.repository.scan import ModelSource, is_model_name, scan_model
from app.repository.uploads import Uploads

logger = logging.getLogger(__name__)

ALL_MODELS = "*"
FROM_THE_FOLDER = LoadOverrides()
#: Seconds after a change until polling checks whether the folder still changes.
SETTLE = 1.0
#: Seconds between two polls with `--reload`.
FOLLOW_SECONDS = 0.25


class ControlMode(Enum):
    """The modes, as they are written."""

    MANAGED = "managed"
    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"

    @property
    def takes_requests(self) -> bool:
        return self in (ControlMode.MANAGED, ControlMode.EXPLICIT)

    @property
    def newcomer(self) -> str:
        """Return the message for a model added after the start; `{}` is its name."""
        if self.takes_requests:
            return NEVER_LOADED
        if self is ControlMode.POLL:
            return (
                "the model is not loaded yet; the next scan of the repository loads it"
            )
        return (
            "the model is not loaded; with --model-control-mode none only a restart "
            "loads it"
        )


class ControlRefused(HttpError):
    """Clients may not load and unload models here. The message is Triton's."""

    def __init__(self, verb: str, name: str, mode: ControlMode) -> None:
        super().__init__(
            503,
            f"failed to {verb} '{name}', explicit model load / unload is not allowed "
            f"if polling is enabled or with --model-control-mode={mode.value}; "
            f"use managed or explicit",
            "model_control",
        )


class ModelControl:
    """Keeps a repository in the state that its mode prescribes. For the event loop's
    thread.

    If `follows` is true, changes in the folder are used as soon as possible, in every
    mode.
    """

    def __init__(
        self,
        repository: ModelRepository,
        pool: DaemonPool,
        scan_pool: DaemonPool,
        mode: ControlMode = ControlMode.MANAGED,
        *,
        startup: tuple[str, ...] = (),
        poll_seconds: float = 15.0,
        follows: bool = False,
        lazily: bool = False,
        uploads: Uploads,
        fetch_pool: DaemonPool | None = None,
    ) -> None:
        """Make the control; `fetch_pool` runs the downloads of remote models."""
        self._fetch_pool = fetch_pool or pool
        self._fetch_seconds = poll_seconds
        self._watching: dict[str, tuple[RemoteUrl, asyncio.Task[None]]] = {}
        self.mode = mode
        self._repository = repository
        self._pool = pool
        self._scan_pool = scan_pool
        self._startup = startup
        self._polls = follows or mode is ControlMode.POLL
        self._poll_seconds = FOLLOW_SECONDS if follows else poll_seconds
        self._lazily = lazily
        self._uploads = uploads
        self._uploaded: dict[str, list[Path]] = {}
        self._polling: asyncio.Task[None] | None = None
        #: The number of failed scans of the folder, and the time of the last successful
        #: one in seconds since 1970.
        self.failed_polls = 0
        self.polled_at = 0.0
        self._unsettled: dict[str, Stamp | None] = {}
        self._is_ending = False

    def begin_end(self) -> None:
        """Note that the server is shutting down, so an interrupted load is not a
        failure.

        May be called from a signal handler.
        """
        self._is_ending = True

    def _tell_failure(self, name: str, problem: str) -> None:
        if self._is_ending:
            logger.info("'%s' is not loaded: the server ends", name)
        else:
            logger.error("failed to load '%s': %s", name, problem)

    async def start(self) -> None:
        """Load the models of the mode; record failures instead of raising them.

        Raises OSError if the folder cannot be listed.
        """
        repository = self._repository
        await self._pool.run(self._uploads.sweep)
        names = await self._pool.run(repository.places.names)
        wanted = set(names)
        for name in names:
            repository.record(name)
        if self.mode is ControlMode.EXPLICIT and ALL_MODELS not in self._startup:
            wanted = set(self._startup)
        for name in wanted:
            repository.record(name).is_pending = True
        loads = (self._load_quietly(name, looks=True) for name in sorted(wanted))
        await asyncio.gather(*loads)
        if self._polls:
            self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def load(
        self, name: str, request: LoadOverrides = FROM_THE_FOLDER
    ) -> ModelRecord:
        """Load the present content of the folder for a model, on a client's request.

        Files of the request replace the folder's. A remote model comes from the cache,
        and is downloaded only if the cache lacks it. Raises `RepositoryError`, or
        `ControlRefused` if the mode allows no requests.
        """
        self._check("load", name)
        root = await self._store(name, request) if request.files else None
        try:
            source = await self._scan(name, root, request.config)
            if source.url is not None and not await self._has(source.url):
                await self._fetch(name, source.url)
                source = await self._scan(name, root, request.config)
            await self._repository.load(source)
            self._keep_looking(name, source)
        finally:
            if root is not None:
                self._uploaded.setdefault(name, []).append(root)
            await self._clean_up(name)
        record = self._repository.record(name)
        if record.problem:
            self._tell_failure(name, record.problem)
            raise RepositoryError(_failure(record), passing=record.passing)
        logger.info("loaded model '%s', %s", name, _versions(record.serving))
        return record

    async def unload(self, name: str, *, dependents: bool = False) -> ModelRecord:
        """Stop serving a model, after its last request, on a client's request.

        With `dependents` the members of an ensemble are unloaded too, unless another
        served ensemble needs them. Raises `RepositoryError`, or `ControlRefused` if the
        mode allows no requests.
        """
        self._check("unload", name)
        record = self._repository.get(name)
        if record is None:
            msg = f"failed to unload '{name}': there is no such model"
            raise RepositoryError(msg, found=False)
        self._keep_looking(name, None)
        await self._repository.unload(name)
        await self._clean_up(name)
        ensemble = record.config.ensemble
        for step in ensemble.step if dependents and ensemble is not None else ():
            users = self._repository.users_of(step.model)
            part = self._repository.get(step.model)
            if part is not None and not any(user.available for user in users):
                await self.unload(step.model, dependents=True)
        return record

    async def discover(self) -> None:
        """List models that were added to the folder and never loaded."""
        if self.mode.takes_requests:
            names = await self._scan_pool.run(self._repository.places.names)
            for name in names:
                self._repository.record(name)

    def stop(self) -> None:
        """Poll no more."""
        if self._polling is not None:
            self._polling.cancel()
        for _, task in self._watching.values():
            task.cancel()

    async def _store(self, name: str, request: LoadOverrides) -> Path:
        """Return a folder with the files of the request. Raises `RepositoryError`."""
        if not is_model_name(name):
            msg = f"failed to load '{name}': this is not a valid name of a model"
            raise RepositoryError(msg, found=False)
        try:
            root = await self._pool.run(
                lambda: self._uploads.store(name, request.files)
            )
        except OSError as e:
            msg = f"failed to load '{name}': cannot write its files: {e}"
            raise RepositoryError(msg) from e
        return root

    async def _clean_up(self, name: str) -> None:
        """Remove uploaded files that no model uses any more."""
        roots = self._uploaded.get(name)
        if not roots:
            return
        record = self._repository.get(name)
        used = record.sources if record is not None else []
        for root in list(roots):
            if not any(f.is_relative_to(root) for s in used for f in s.files):
                roots.remove(root)
                await self._pool.run(partial(self._uploads.remove, root))

    def _check(self, verb: str, name: str) -> None:
        if not self.mode.takes_requests:
            raise ControlRefused(verb, name, self.mode)

    async def _scan(
        self, name: str, root: Path | None = None, config: str | None = None
    ) -> ModelSource:
        """Return the model in the folder.

        Raises `RepositoryError` if it does not exist.
        """
        scan = partial(self._repository.places.scan, name, config)
        if root is not None:
            origin = Origin("the load request", is_trusted=False)
            scan = partial(scan_model, root, name, config, origin=origin)
        source = await self._pool.run(scan)
        if source is None:
            msg = (
                f"failed to load '{name}', failed to poll from model repository: "
                f"there is no such model in it"
            )
            raise RepositoryError(msg, found=False)
        return source

    async def load_member(self, name: str) -> None:
        """Load a model that an ensemble needs, if the mode allows requests."""
        if self.mode.takes_requests:
            await self._load_quietly(name)

    async def _load_quietly(self, name: str, *, looks: bool = False) -> None:
        """Load a model, and record errors.

        A remote model is downloaded first, if `looks` is set or the cache lacks it.
        """
        record = self._repository.record(name)
        try:
            source = await self._scan(name)
            if source.url is not None and (looks or not await self._has(source.url)):
                await self._fetch(name, source.url)
                source = await self._scan(name)
            await self._repository.load(source, lazily=self._lazily, evict=False)
            if source.url is not None:
                await self._settle_remote(record, source.url)
            self._keep_looking(name, source)
            problem = record.problem
        except FetchStopped:
            return
        except (RepositoryError, OSError) as e:
            problem = record.reason = str(e)
        except Exception as e:  # one model's fault must not stop the others
            logger.exception("model %s: unexpected", name)
            problem = record.reason = f"{type(e).__name__}: {e}; this is a bug"
        record.is_pending = False
        if problem:
            self._tell_failure(name, problem)

    # -- remote models

    async def _has(self, url: RemoteUrl) -> bool:
        """Return whether the cache has the URL."""
        folder = await self._pool.run(partial(self._remote(url).folder_of, url))
        return folder is not None

    def _remote(self, url: RemoteUrl) -> RemoteModels:
        """Return the models of the source that knows a URL."""
        remote = self._repository.places.remote
        assert remote is not None
        return remote.of(url)

    async def _fetch(self, name: str, url: RemoteUrl) -> bool:
        """Download a URL; return whether the model in the cache has changed.

        Raises `FetchStopped`.
        """
        remote = self._remote(url)
        self._repository.record(name).news = partial(remote.news_of, url)
        try:
            fetch = partial(remote.fetch, f"model {name}", url)
            return await self._fetch_pool.run(fetch)
        except FetchStopped:
            raise
        except RemoteError:
            return False  # the scan puts the reason into its record
        except Exception:
            logger.exception("model %s: unexpected", name)
            return False

    async def _settle_remote(self, record: ModelRecord, url: RemoteUrl) -> None:
        """Keep in the cache the files that serve after a load. If none serve, load the
        former files.
        """
        remote = self._remote(url)
        if not record.problem and record.serving:
            files = [f for s in record.sources for f in s.files]
            await self._pool.run(partial(remote.confirm, url, files))
        if not record.problem or record.available:
            return
        if not await self._pool.run(partial(remote.step_back, url)):
            return
        reasons = [v.reason for v in record.versions.values() if v.reason]
        problem = record.reason or reasons[0]
        source = await self._scan(record.name)
        await self._repository.load(source, lazily=self._lazily, evict=False)
        if not record.problem:
            logger.warning("model %s: serving its former files", record.name)
            for version in record.versions.values():
                version.reason = problem

    @property
    def polls(self) -> bool:
        """Return whether the folder is polled."""
        return self._polls

    def remote_looks(self) -> dict[str, Looks]:
        """Return the state of the polls for remote models, by name."""
        watched = self._watching.items()
        return {name: self._remote(url).looks_at(url) for name, (url, _) in watched}

    def _keep_looking(
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
        await self._drop_unused(url)
        pause = 0.0 if at_once else self._fetch_seconds
        while self._polls or not await self._has(url):
            await asyncio.sleep(pause)
            pause = self._fetch_seconds
            try:
                await self._look(name, url)
            except FetchStopped:
                return
            except Exception:
                logger.exception("model %s: unexpected", name)

    async def _look(self, name: str, url: RemoteUrl) -> None:
        """Serve the present files if they have changed, and remove the replaced ones
        from the cache.

        Raises `FetchStopped`.
        """
        if not await self._fetch(name, url) and await self._has(url):
            return
        places, record = self._repository.places, self._repository.record(name)
        source = await self._pool.run(partial(places.scan, name))
        if source is None or source.url != url or source.problem == record.reason != "":
            return
        await self._follow(name, source)
        await self._drop_unused(url)

    async def _drop_unused(self, url: RemoteUrl) -> None:
        """Remove from the cache the files that no model uses any more."""
        remote = self._remote(url)
        models = self._repository.models()
        used = [f for model in models for s in model.sources for f in s.files]
        await self._pool.run(partial(remote.drop_unused, url, used))

    # -- polling

    async def _poll(self) -> None:
        while True:
            pause = self._poll_seconds
            await asyncio.sleep(min(pause, SETTLE) if self._unsettled else pause)
            try:
                await self.poll_once()
                self.polled_at = time.time()
            except OSError as e:
                self.failed_polls += 1
                logger.error("cannot read the model repository: %s", e)
            except Exception:
                self.failed_polls += 1
                logger.exception("polling the model repository")

    async def poll_once(self) -> None:
        """Use the changes that have settled since the last scan."""
        sources = await self._pool.run(self._repository.places.scan_all)
        known = {record.name for record in self._repository.models()}
        for name in sorted(known | set(sources)):
            source = sources.get(name)
            record = self._repository.get(name)
            if self.mode is ControlMode.EXPLICIT and not (record and record.stamp):
                continue  # no request has loaded it yet
            stamp = source.stamp if source is not None else None
            before = record.stamp if record is not None else None
            if stamp == before:
                self._unsettled.pop(name, None)
            elif name not in self._unsettled or self._unsettled[name] != stamp:
                self._unsettled[name] = stamp
            else:
                del self._unsettled[name]
                try:
                    await self._follow_folder(name, source)
                except Exception as e:
                    logger.exception("model %s: unexpected", name)
                    reason = f"{type(e).__name__}: {e}; this is a bug"
                    self._repository.record(name).reason = reason

    async def _follow_folder(self, name: str, source: ModelSource | None) -> None:
        """Use changes in the folder.

        Remote models follow when their files have arrived, so no other model waits for
        them.
        """
        is_to_come = (
            source is not None
            and source.url is not None
            and not await self._has(source.url)
        )
        self._keep_looking(name, source, at_once=is_to_come)
        if source is None:
            await self._repository.unload(name)
            self._repository.forget(name)
        elif is_to_come:
            await self._repository.load(source)  # so that the poll waits for the load
        else:
            await self._follow(name, source)

    async def _follow(self, name: str, source: ModelSource) -> None:
        await self._repository.load(source, lazily=self._lazily)
        record = self._repository.record(name)
        if source.url is not None:
            await self._settle_remote(record, source.url)
        if record.problem:
            self._tell_failure(name, record.problem)
        else:
            logger.info("loaded model '%s', %s", name, _versions(record.available))


def _versions(numbers: Iterable[int]) -> str:
    shown = sorted(numbers)
    return f"version{'s' * (len(shown) != 1)} {', '.join(map(str, shown)) or 'none'}"


def _failure(record: ModelRecord) -> str:
    """Return why loading failed, in the words that Triton's scripts search for."""
    if record.reason:  # of the whole folder, before any version
        return (
            f"failed to load '{record.name}', failed to poll from model repository: "
            f"{record.reason}"
        )
    return f"load failed for model '{record.name}': {record.problem}"
