"""`OtherProcesses`: the gateway's link to the server's other processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.limits import Total
from app.observe.answers import Answers
from app.observe.journal import Part
from app.observe.log import LogSettings
from app.observe.metrics import ModelMetrics
from app.observe.processes import OwnNumbers
from engine import Device


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A process that takes connections. `pid` is 0 while it does not run."""

    number: int
    pid: int
    restarts: int


class OtherProcesses:
    """No other processes: this process takes the connections itself.

    The plugin for `--workers` has a subclass.
    """

    #: The bytes of bodies and answers in transit, if other processes hold some too.
    bytes_held: Total | None = None

    def states(self) -> list[WorkerState]:
        return []

    def counted(self, name: str, version: str) -> Iterable[ModelMetrics]:
        """Return the counters of a version in those processes."""
        return ()

    def own(self) -> Iterable[OwnNumbers]:
        """Return the numbers that each process reports about itself, and those of ended
        processes.
        """
        return ()

    def answered(self) -> Iterable[Answers]:
        """Return the answers that those processes have counted."""
        return ()

    def in_flight_on(self, device: Device) -> int:
        """Return how many requests those processes have in flight on a device."""
        return 0

    async def journals(self) -> list[Any]:
        """Return the journals of those processes."""
        return []

    async def settled(self, leaving: Sequence[object]) -> None:
        """Return when those processes use the published table.

        They then have nothing in flight on the runners `leaving`.
        """

    def model_changed(self, name: str) -> None:
        """Tell those processes that the table has changed for a model."""

    def device_is_back(self) -> None:
        """Report that a lost device has come back, with its models."""

    def log_changed(self, settings: LogSettings) -> None: ...

    def access_changed(self, text: str) -> None:
        """Report a new share of logged requests (`Journal.set_access`)."""

    async def askers(
        self, numbers: Iterable[int]
    ) -> Mapping[int, tuple[str, str, str]]:
        """Return the clients of those processes' requests (requester.py)."""
        return {}

    def add_part(self, number: int, part: Part) -> None:
        """Record that a call for a request of those processes has ended."""

    def drain(self) -> None:
        """Report that the gateway is not ready from now on."""
