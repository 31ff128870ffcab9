"""`Feeders`: the processes that feed the gateway's devices beside the gateway.

They are HTTP workers, and the processes of Python models that call other models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from app.observe.answers import Answers
from app.observe.metrics import ModelMetrics


class Feeder(Protocol):
    """Some of these processes, by default none. For the event loop's thread."""

    def model_changed(self, name: str) -> None:
        """Tell them that the table has changed for a model."""
        return

    async def settled(self, leaving: Sequence[object]) -> None:
        """Return when they use the published table, and have nothing in flight on the
        runners `leaving`.
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
            one.model_changed(name)

    async def settled(self, leaving: Sequence[object]) -> None:
        for one in self._all:
            await one.settled(leaving)

    def counted(self, name: str, version: str) -> Iterable[ModelMetrics]:
        return [found for one in self._all for found in one.counted(name, version)]

    def answered(self) -> Iterable[Answers]:
        return [found for one in self._all for found in one.answered()]
