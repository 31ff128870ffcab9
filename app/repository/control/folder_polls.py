"""`FolderPolls`: the repeated scans of the folder of models."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from app.config.file_stamps import Stamp
from app.repository.control.folder_loads import FolderLoads
from app.repository.control.remote_files import RemoteWatch
from app.repository.records import ModelRecords
from app.repository.repository import ModelRepository
from app.repository.source import ScannedModel

logger = logging.getLogger(__name__)

#: Seconds after a change until polling checks whether the folder still changes.
SETTLE = 1.0


@dataclass(eq=False, repr=False)
class FolderPolls:
    """Uses the changes in the folder, every `seconds`. For the event loop's thread.

    If `known_only` is true, models follow the folder only after their first load.
    """

    _records: ModelRecords
    _repository: ModelRepository
    _loads: FolderLoads
    _watch: RemoteWatch
    known_only: bool
    seconds: float
    _polling: asyncio.Task[None] | None = field(default=None, init=False)
    _unsettled: dict[str, Stamp | None] = field(default_factory=dict, init=False)
    #: The number of failed scans of the folder, and the time of the last successful one
    #: in seconds since 1970.
    failed: int = field(default=0, init=False)
    polled_at: float = field(default=0.0, init=False)
    #: Why the last scan failed. The log says it once.
    _problem: str = field(default="", init=False)

    def start(self) -> None:
        """Poll from now on."""
        self._polling = asyncio.get_running_loop().create_task(self._poll())

    def stop(self) -> None:
        """Poll no more."""
        if self._polling is not None:
            self._polling.cancel()

    async def _poll(self) -> None:
        while True:
            pause = self.seconds
            await asyncio.sleep(min(pause, SETTLE) if self._unsettled else pause)
            try:
                await self.poll_once()
                if self._problem:
                    logger.info("the model repository can be read again")
                self.polled_at, self._problem = time.time(), ""
            except OSError as e:
                self.failed += 1
                before, self._problem = self._problem, str(e)
                if self._problem != before:
                    logger.error("cannot read the model repository: %s", e)
            except Exception:
                self.failed += 1
                logger.exception("polling the model repository")

    async def poll_once(self) -> None:
        """Use the changes that have settled since the last scan."""
        models = await self._loads.scan_all()
        known = {record.name for record in self._records.all()}
        for name in sorted({*known, *models, *self._unsettled}):
            scanned = models.get(name)
            record = self._records.get(name)
            if self.known_only and not (record and record.stamp):
                continue  # no request has loaded it yet
            stamp = scanned.stamp if scanned is not None else None
            before = record.stamp if record is not None else None
            if stamp == before:
                self._unsettled.pop(name, None)
            elif name not in self._unsettled or self._unsettled[name] != stamp:
                self._unsettled[name] = stamp
            else:
                del self._unsettled[name]
                try:
                    await self._follow_folder(name, scanned)
                except Exception as e:
                    logger.exception("model %s: unexpected", name)
                    reason = f"{type(e).__name__}: {e}; this is a bug"
                    self._records.record(name).fail(reason)

    async def _follow_folder(self, name: str, scanned: ScannedModel | None) -> None:
        """Use changes in the folder.

        Remote models follow when their files have arrived, so no other model waits for
        them.
        """
        is_to_come = (
            scanned is not None
            and scanned.url is not None
            and not await self._loads.remote.has(scanned.url)
        )
        self._watch.follow(name, scanned, at_once=is_to_come)
        if scanned is None:
            await self._repository.unload(name)
            self._repository.forget(name)
        elif is_to_come:
            await self._repository.load(scanned)  # so that the poll waits for the load
        else:
            await self._loads.follow(name, scanned)
