"""`SharedRunners`: runners of models that the supervisor has loaded."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from app.repository.formats import join_format
from app.serving.ensemble import Ensemble, EnsembleScheduler
from app.serving.ensemble_kind import ensemble_kind
from app.serving.runner import RequestScheduler
from app.serving.stateful import StatefulScheduler, stateful_models
from app.serving.table import ModelEntry, ModelTable
from engine import EngineError, JoinedRunner
from popgate_workers.joined_devices import JoinedDevices
from popgate_workers.messages import SharedEnsemble, SharedEntry
from popgate_workers.shared_counters import CounterSegment

logger = logging.getLogger(__name__)

#: A runner of a model in a worker.
LocalRunner: TypeAlias = JoinedRunner | Ensemble


class SharedRunners:
    """Makes the runners of worker `number`, on its devices, and closes them.

    Requests in flight on a closed runner have `drain_timeout` seconds. `lack` is called
    if descriptors are short for a runner.
    """

    def __init__(
        self,
        number: int,
        table: ModelTable,
        counters: CounterSegment,
        devices: JoinedDevices,
        drain_timeout: float,
        lack: Callable[[], None],
    ) -> None:
        self._number = number
        self._table = table
        self._counters = counters
        self._devices = devices
        self._drain_timeout = drain_timeout
        self._lack = lack

    async def find(
        self, one: SharedEntry
    ) -> tuple[LocalRunner, RequestScheduler | None] | None:
        """Return the runner of a version, and its scheduler.

        None if a device has died, or the files of the model differ from the loaded
        ones.
        """
        runner = await self._runner(one)
        if runner is None:
            return None
        if isinstance(runner, Ensemble):
            return runner, EnsembleScheduler(runner)
        if one.generator is not None:
            kind = stateful_models("a generator")
            return runner, kind.generator(one.generator.value, runner)
        if one.format is None:
            return runner, None
        try:
            made = await asyncio.to_thread(join_format, one.format.value, runner)
        except (ValueError, OSError) as error:
            logger.warning(
                "model %s/%s runs in the supervisor: %s",
                *(one.spec.value.name, one.spec.value.version, error),
            )
            await asyncio.to_thread(runner.close)
            return None
        return runner, made

    async def _runner(self, one: SharedEntry) -> LocalRunner | None:
        """Return the runner; None if a device has died.

        The supervisor then runs the model, and reports when the device is back.
        """
        if isinstance(one.runner, SharedEnsemble):
            shared = one.runner
            members = tuple(member.value for member in shared.members)
            return ensemble_kind().join(shared.graph, members, self._table)
        description = one.runner.description.value
        replicas = description.replicas
        for key, _ in replicas:
            await self._devices.wait_for(key)
        # Among equally busy replicas, the first receives a request. Each worker counts
        # only its own requests, so each begins with another replica.
        first = self._number % max(1, len(replicas))
        runner = replace(description, replicas=replicas[first:] + replicas[:first])
        found = self._devices.by_key()
        try:
            # This waits for the device, which may be running a batch.
            return await asyncio.to_thread(JoinedRunner, runner, found)
        except EngineError as error:
            logger.debug("model %s: %s", one.spec.value.name, error)
            return None
        except OSError as error:  # a run takes long, or descriptors are short
            logger.warning(
                "model %s/%s runs in the supervisor: %s",
                *(one.spec.value.name, one.spec.value.version, error),
            )
            if not isinstance(error, TimeoutError):
                self._lack()
            return None

    def entry(
        self, one: SharedEntry, runner: LocalRunner, scheduler: RequestScheduler | None
    ) -> ModelEntry:
        """Return the entry of a version, for the table."""
        spec = one.spec.value
        return ModelEntry(
            spec,
            runner,
            self._counters.metrics(one.block, spec.name, spec.version),
            timeout=one.timeout,
            max_timeout=one.max_timeout,
            level_timeouts=one.level_timeouts,
            scheduler=scheduler,
            limits=self._table.limits,
        )

    async def leave(
        self, runner: LocalRunner, scheduler: RequestScheduler | None
    ) -> None:
        """Release a runner that gets no new requests, when its streams have had their
        last response.
        """
        end = time.monotonic() + self._drain_timeout
        if isinstance(scheduler, StatefulScheduler):
            await scheduler.drain(self._drain_timeout)
        left = max(0.0, end - time.monotonic())
        if not await asyncio.to_thread(runner.drain, left):
            logger.warning("closing %r with requests in flight", runner)
            runner.close()  # this thread answers its requests
        else:
            await asyncio.to_thread(runner.close)


def can_run(runner: LocalRunner) -> bool:
    """Return whether a runner takes requests now."""
    return runner.fits if isinstance(runner, Ensemble) else runner.serving
