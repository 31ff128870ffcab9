"""`Feeders`: the processes that feed the gateway's devices beside the gateway.

They are HTTP workers, and the processes of Python models that call other models.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Protocol

from app.observe.answers import Answers
from app.observe.metrics import ModelMetrics
from engine import Device, DeviceLost

logger = logging.getLogger(__name__)


class Feeder(Protocol):
    """Some of these processes, by default none. For the event loop's thread."""

    def model_changed(self, name: str) -> None:
        """Tell them that the table has changed for a model."""
        return

    async def release(self, runners: Sequence[object]) -> None:
        """Return when they use the published table, and have nothing in flight on these
        runners.
        """
        return

    def counted(self, name: str, version: str) -> Iterable[ModelMetrics]:
        """Return their counters of a version, beside those in the gateway's own."""
        return ()

    def answered(self) -> Iterable[Answers]:
        """Return the answers that they have counted."""
        return ()


class Feeders:
    """All of them, as one `Feeder`.

    The table and the metrics come before the feeders that use them, so feeders are
    added.
    """

    def __init__(self) -> None:
        self._all: list[Feeder] = []

    def add(self, *feeders: Feeder) -> None:
        self._all += feeders

    def model_changed(self, name: str) -> None:
        for one in self._all:
            try:
                one.model_changed(name)
            except Exception:  # the others have to be told
                logger.exception("a change of model %s", name)

    async def release(self, runners: Sequence[object]) -> None:
        for one in self._all:
            await one.release(runners)

    def counted(self, name: str, version: str) -> Iterable[ModelMetrics]:
        return [found for one in self._all for found in one.counted(name, version)]

    def answered(self) -> Iterable[Answers]:
        return [found for one in self._all for found in one.answered()]


def device_key(device: Device) -> str:
    """Return the key of the present process of a device."""
    return f"{device.id}#{device.pid}"


class FeedingProcess:
    """One of these processes. A subclass talks to it, and notes what it was told. For
    the event loop's thread.
    """

    def __init__(self) -> None:
        #: The runners that it feeds, or was told to feed, by key.
        self.held: dict[int, object] = {}
        #: The keys of the devices that it was told to join.
        self._joined: set[str] = set()
        self._news = asyncio.Event()

    @asynccontextmanager
    async def doors(
        self, devices: Iterable[Device]
    ) -> AsyncIterator[dict[tuple[str, str], int]]:
        """Yield doors to the devices that it has not joined, by key and id.

        The block tells it to join them, or fails. Raises EngineError.
        """
        found: dict[tuple[str, str], int] = {}
        with ExitStack() as doors:
            for device in dict.fromkeys(devices):
                key = device_key(device)
                if key not in self._joined:
                    door = doors.enter_context(await asyncio.to_thread(device.invite))
                    found[key, device.id] = door.fileno()
                    if device_key(device) != key:
                        raise DeviceLost(f"device {device.id} was restarted")
            yield found
        self._joined.update(key for key, _ in found)

    def left(self, key: int) -> None:
        """Note that it has released a runner."""
        self.held.pop(key, None)
        self._news.set()

    def process_ended(self) -> None:
        """Note that the process has ended, and holds nothing."""
        self.held.clear()
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def released(self, runners: Sequence[object], seconds: float) -> bool:
        """Wait until it holds none of these runners. Return whether it does so in
        time.
        """
        ids = set(map(id, runners))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.until(lambda: ids.isdisjoint(map(id, self.held.values())))
                return True
        return False
