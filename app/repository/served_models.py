"""`ServedModels`: the loaded versions in the table of models, and their end."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from app.background import DaemonPool
from app.config.priorities import timeouts
from app.observe.metrics import MetricsRegistry
from app.repository.memory_budget import MemoryBudget
from app.repository.records import LoadedModel, ModelRecord
from app.serving.stateful import StatefulScheduler
from app.serving.table import ModelEntry, ModelTable

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class ServedModels:
    """Publishes the versions of a model, and closes those that serve no more.

    `_release` returns when all processes of the server use the published table, and
    none has requests in flight on these runners any more. The memory of closed versions
    goes back to `_budget`. `_unload_pool` runs what closing waits for, `_drain_timeout`
    seconds at most.
    """

    _table: ModelTable
    _metrics: MetricsRegistry
    _budget: MemoryBudget
    _unload_pool: DaemonPool
    _drain_timeout: float
    _release: Callable[[Sequence[object]], Awaitable[None]]

    def publish(self, record: ModelRecord) -> None:
        """Let requests use the versions of a model that are in memory now."""
        entries = [
            ModelEntry(
                loaded.spec,
                loaded.runner,
                self._metrics.model(record.name, loaded.version),
                timeout=loaded.config.timeout,
                scheduler=loaded.scheduler,
                max_timeout=loaded.config.max_timeout,
                level_timeouts=timeouts(loaded.runner.config, loaded.config.priority),
                limits=self._table.limits,
                regions=self._table.regions,
            )
            for loaded in record.serving.values()
        ]
        default = str(record.default_version)
        served = {loaded.version: loaded for loaded in record.serving.values()}
        routes = served[default].routes.routes if default in served else ()
        self._table.publish(record.name, entries, default=default, routes=routes)

    async def drain(self, to_drain: Iterable[LoadedModel]) -> None:
        """Close runners that get no new requests.

        A runner closes when no request is in flight and streams have had their last
        response, or after the drain timeout.
        """
        to_drain = list(to_drain)
        await self._release([loaded.runner for loaded in to_drain])
        for loaded in to_drain:
            end = time.monotonic() + self._drain_timeout
            if isinstance(loaded.scheduler, StatefulScheduler):
                await loaded.scheduler.drain(self._drain_timeout)
            drain = partial(loaded.runner.drain, max(0.0, end - time.monotonic()))
            drained = await self._unload_pool.run(drain)
            await self.save(loaded)
            if drained:
                await self._unload_pool.run(loaded.runner.close)
            else:
                logger.warning("closing %r with requests in flight", loaded.runner)
                # Requests must be failed in this thread, which does nothing else
                # meanwhile.
                loaded.runner.close()
            self._budget.release(loaded.memory)

    async def save(self, loaded: LoadedModel) -> None:
        """Save the state of a version to the places in its options."""
        await self._unload_pool.run(loaded.save)
