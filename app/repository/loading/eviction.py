"""`Eviction`: memory for a model to load, taken from models that are idle."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from app.observe.metrics import MetricsRegistry
from app.repository.load_errors import LoadCutOff, LoadError
from app.repository.memory_budget import MemoryBudget
from app.repository.model_life import Event
from app.repository.records import ModelRecord, ModelRecords, VersionRecord
from app.repository.served_models import ServedModels
from app.serving.stateful import StatefulScheduler
from app.sizes import size_text

logger = logging.getLogger(__name__)

# Seconds that a load waits for models in use to become idle, if it needs their memory.
EVICTION_TIMEOUT = 30.0
EVICTION_TICK = 0.02


class NoMemory(LoadCutOff):
    """Loading needs memory that other models use."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "model_memory_full")


@dataclass(eq=False, repr=False)
class Eviction:
    """Reserves memory out of a budget. For the event loop's thread."""

    _budget: MemoryBudget
    _records: ModelRecords
    _metrics: MetricsRegistry
    _served: ServedModels

    async def reserve(
        self, size: int, evict: bool, beside: Collection[VersionRecord]
    ) -> int:
        """Reserve `size` bytes of the budget; unload idle models to make room if
        needed.

        `beside` are the other versions of the model, which the caller has locked.
        Raises `LoadError`, or `NoMemory` if memory may be free at another time.
        """
        budget, deadline = self._budget, time.monotonic() + EVICTION_TIMEOUT
        if size > budget.limit:
            msg = (
                f"it needs about {size_text(size)}, but all models together may use "
                f"{size_text(budget.limit)} (--model-memory)"
            )
            raise LoadError(msg)
        while not budget.reserve(size):
            victim = self._least_recently_used(beside) if evict else None
            if victim is not None:
                await self._evict(*victim)
            elif not evict or time.monotonic() > deadline:
                msg = (
                    f"it needs about {size_text(size)}, but models in use hold "
                    f"{size_text(budget.used)} of {size_text(budget.limit)} "
                    "(--model-memory)"
                )
                raise NoMemory(msg)
            else:
                await asyncio.sleep(EVICTION_TICK)
        return size

    def _least_recently_used(
        self, beside: Collection[VersionRecord]
    ) -> tuple[ModelRecord, VersionRecord] | None:
        """Return the version that has been idle longest; None if all are in use.

        A version with an open sequence is in use: its state is not in the model. So is
        a version of a locked model, except for those in `beside`.
        """
        found: tuple[float, ModelRecord, VersionRecord] | None = None
        for record in self._records.all():
            is_locked = record.lock.locked()
            for entry in record.versions.values():
                if is_locked and entry not in beside:
                    continue
                loaded = entry.loaded
                if loaded is None or entry.source is None or not loaded.memory:
                    continue
                stats = self._metrics.total(record.name, loaded.version)
                if loaded.runner.in_flight or self._is_pending(record):
                    continue
                scheduler = loaded.scheduler
                if isinstance(scheduler, StatefulScheduler) and scheduler.is_open:
                    continue
                used = max(stats.last_inference, loaded.loaded_at)
                if found is None or used < found[0]:
                    found = (used, record, entry)
        return found[1:] if found is not None else None

    def _is_pending(self, record: ModelRecord) -> bool:
        """Return whether requests to it, or to an ensemble that contains it, are in
        flight.
        """
        return any(
            self._metrics.total(user.name, loaded.version).pending
            for user in (record, *self._records.users_of(record.name))
            for loaded in user.serving.values()
        )

    async def _evict(self, record: ModelRecord, entry: VersionRecord) -> None:
        """Take an idle version out of memory.

        The next request to it, or to an ensemble that contains it, loads it again.
        """
        loaded = entry.on(Event.EVICT)
        assert loaded is not None
        for user in self._records.users_of(record.name):
            for version in user.versions.values():
                if version.loaded is not None:
                    version.on(Event.EVICT)
            self._served.publish(user)
        self._served.publish(record)
        logger.info("evicted model %s/%s", record.name, entry.version)
        await self._served.drain([loaded])
