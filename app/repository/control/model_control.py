"""`ModelControl`: which models are loaded, and when (control_mode.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from app.background import DaemonPool
from app.repository.control.control_mode import ControlMode, ControlRefused
from app.repository.control.folder_loads import FolderLoads, versions_text
from app.repository.control.remote_files import RemoteWatch
from app.repository.control.uploads import Uploads
from app.repository.load_overrides import LoadOverrides
from app.repository.model_sources import FetchStopped
from app.repository.places import ModelPlaces
from app.repository.records import ModelRecord, ModelRecords, RepositoryError
from app.repository.repository import ModelRepository
from app.repository.source import is_model_name

logger = logging.getLogger(__name__)

ALL_MODELS = "*"
FROM_THE_FOLDER = LoadOverrides()


@dataclass(eq=False, repr=False)
class ModelControl:
    """Loads models at the start and on request, as the mode allows. For the event
    loop's thread.

    `_startup` are the models of mode ``explicit``.
    """

    _records: ModelRecords
    _places: ModelPlaces
    _repository: ModelRepository
    _loads: FolderLoads
    watch: RemoteWatch
    _pool: DaemonPool
    _scan_pool: DaemonPool
    mode: ControlMode
    _uploads: Uploads
    _startup: tuple[str, ...] = ()
    _uploaded: dict[str, list[Path]] = field(default_factory=dict, init=False)

    async def start(self) -> None:
        """Load the models of the mode; record failures instead of raising them.

        Raises OSError if the folder cannot be listed.
        """
        records = self._records
        await self._pool.run(self._uploads.sweep)
        names = await self._pool.run(self._places.names)
        wanted = set(names)
        for name in names:
            records.record(name)
        if self.mode is ControlMode.EXPLICIT and ALL_MODELS not in self._startup:
            wanted = set(self._startup)
        for name in wanted:
            records.record(name).expect()
        loads = (self._load_quietly(name, looks=True) for name in sorted(wanted))
        await asyncio.gather(*loads)

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
            scanned = await self._loads.scan(name, root, request.config)
            await self._loads.put(scanned, on_request=True)
            self.watch.follow(name, scanned)
            # Read here, because another load may end during the clean-up.
            record = self._records.record(name)
            problem, passing = record.problem, record.passing
            failure = _failure(record)
        finally:
            if root is not None:
                self._uploaded.setdefault(name, []).append(root)
            await self._clean_up(name)
        if problem:
            self._loads.log_failure(name, problem)
            raise RepositoryError(failure, passing=passing)
        logger.info("loaded model '%s', %s", name, versions_text(record.serving))
        return record

    async def unload(
        self, name: str, members: Callable[[str], bool] | None = None
    ) -> ModelRecord:
        """Stop serving a model, after its last request, on a client's request.

        The `members` of an ensemble that are to be unloaded follow, unless another
        served ensemble needs them. Raises `RepositoryError`, or `ControlRefused` if the
        mode allows no requests.
        """
        self._check("unload", name)
        record = self._records.get(name)
        if record is None:
            msg = f"failed to unload '{name}': there is no such model"
            raise RepositoryError(msg, found=False)
        self.watch.follow(name, None)
        await self._repository.unload(name)
        await self._clean_up(name)
        if members is None or (ensemble := record.config.ensemble) is None:
            return record
        for part in (step.model for step in ensemble.step if members(step.model)):
            in_use = any(user.available for user in self._records.users_of(part))
            if self._records.get(part) is not None and not in_use:
                await self.unload(part, members)
        return record

    async def discover(self) -> None:
        """List models that were added to the folder and never loaded."""
        if self.mode.takes_requests:
            names = await self._scan_pool.run(self._places.names)
            for name in names:
                self._records.record(name)

    def begin_end(self) -> None:
        """Note that the server shuts down. May be called from a signal handler."""
        self._loads.begin_end()

    def stop(self) -> None:
        """Poll no more."""
        self.watch.stop()

    async def close(self) -> None:
        """Save the state of all models, and serve none from now on."""
        await self._repository.save()
        self._repository.close()

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
        record = self._records.get(name)
        used = record.sources if record is not None else []
        for root in list(roots):
            if not any(f.is_relative_to(root) for s in used for f in s.files):
                roots.remove(root)
                await self._pool.run(partial(self._uploads.remove, root))

    def _check(self, verb: str, name: str) -> None:
        if not self.mode.takes_requests:
            raise ControlRefused(verb, name, self.mode)

    async def load_member(self, name: str) -> None:
        """Load a model that an ensemble needs, if the mode allows requests."""
        if self.mode.takes_requests:
            await self._load_quietly(name)

    async def _load_quietly(self, name: str, *, looks: bool = False) -> None:
        """Load a model, and record errors. `looks` is that of `FolderLoads.scan`."""
        record = self._records.record(name)
        try:
            scanned = await self._loads.scan(name, looks=looks)
            await self._loads.put(scanned)
            self.watch.follow(name, scanned)
            problem = record.problem
        except FetchStopped:
            return
        except asyncio.CancelledError:  # the server did not wait for it
            self._loads.log_failure(name, "the load was cancelled")
            raise
        except (RepositoryError, OSError) as e:
            problem = str(e)
            record.fail(problem)
        except Exception as e:  # one model's fault must not stop the others
            logger.exception("model %s: unexpected", name)
            problem = f"{type(e).__name__}: {e}; this is a bug"
            record.fail(problem)
        record.settle()
        if problem:
            self._loads.log_failure(name, problem)


def _failure(record: ModelRecord) -> str:
    """Return why loading failed, in the words that Triton's scripts search for."""
    if record.reason:  # of the whole folder, before any version
        return (
            f"failed to load '{record.name}', failed to poll from model repository: "
            f"{record.reason}"
        )
    return f"load failed for model '{record.name}': {record.problem}"
