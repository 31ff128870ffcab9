"""Models that are not in the table of models: why they are absent, and their loading by
the first request to them, while it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from app.repository.model_life import State
from app.repository.records import ModelRecords, VersionRecord
from app.serving.absent import Absent
from app.serving.timeout_policy import TimeoutPolicy
from app.stage import Stage
from engine import DeadlineExceeded, QueueFull


class OnDemandLoader(Absent):
    """Loads versions on demand, each once, however many requests wait for it.

    A request waits up to its deadline. The load continues without it. For the event
    loop's thread.
    """

    def __init__(self, stage: Stage, records: ModelRecords) -> None:
        self._stage = stage
        self._records = records
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, int] = {}

    def explain(self, name: str, version: str | None) -> str | None:
        """Return why a model or version is not served; None if it does not exist."""
        if not self._stage.is_serving and not len(self._records):
            # The folder has not been read.
            return f"the gateway is {self._stage.phase}"
        return self._records.explain(name, version)

    def is_to_come(self, name: str) -> bool:
        """Return whether the server is starting and may still load the model."""
        if not self._stage.is_starting:
            return False
        record = self._records.get(name)
        if record is None:
            return not len(self._records)  # the folder has not been read
        return record.state is State.LOADING

    def offers(self, name: str, version: str | None = None) -> bool:
        """Return whether a request to a version (None: the default) would load it."""
        return self._entry(name, version) is not None

    async def ensure(
        self, name: str, version: str | None, policy: TimeoutPolicy
    ) -> None:
        """Return when the version is loaded, or cannot be, or is not on offer.

        Raises `engine.DeadlineExceeded` at the request's deadline, and
        `engine.QueueFull` if too many requests wait already.
        """
        tried: set[VersionRecord] = set()
        # A version may be unloaded for another model, or replaced, before the requests
        # that waited for it go on. It is then loaded again.
        while (entry := self._entry(name, version, tried)) is not None:
            tried.add(entry)
            await self._wait(name, entry, policy)

    async def _wait(
        self, name: str, entry: VersionRecord, policy: TimeoutPolicy
    ) -> None:
        """Load a version that is on offer; raises as `ensure` does."""
        key = id(entry)
        load = self._loads.get(key)
        if load is None:
            record = self._records.record(name)
            load = asyncio.ensure_future(record.load(entry))
            self._loads[key] = load
            load.add_done_callback(lambda _: self._loads.pop(key, None))
        limit = entry.config.max_queue_size
        waiting = self._waiting.get(key, 0)
        if waiting >= limit:
            msg = (
                f"model '{name}' is loading, and its queue is full: {limit} requests "
                "wait"
            )
            raise QueueFull(msg, retry_after=1.0)
        timeout = entry.config.timeout_of(policy.asked, policy.priority, policy.default)
        seconds = policy.left(timeout)
        self._waiting[key] = waiting + 1
        try:
            done, _ = await asyncio.wait([load], timeout=seconds)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        if not done:
            msg = f"model '{name}' was still loading when the request's deadline passed"
            raise DeadlineExceeded(msg)
        load.result()

    def close(self) -> None:
        """Stop the running loads."""
        for load in self._loads.values():
            load.cancel()

    def _entry(
        self, name: str, version: str | None, tried: Collection[VersionRecord] = ()
    ) -> VersionRecord | None:
        record = self._records.get(name)
        return record.on_demand(version, tried) if record is not None else None

    def __repr__(self) -> str:
        return f"<OnDemandLoader loading {len(self._loads)}>"
