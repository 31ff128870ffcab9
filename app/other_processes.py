"""`OtherProcesses`: the gateway's link to the server's other processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.limits import Total
from app.observe.log import LogSettings
from app.observe.processes import OwnNumbers
from app.serving.calls.parent_request import RemoteParents
from app.serving.feeders import Feeder
from engine import Device


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A process that takes connections. `pid` is 0 while it does not run."""

    number: int
    pid: int
    restarts: int


class OtherProcesses(Feeder, RemoteParents):
    """No other processes: this process takes the connections itself.

    The plugin for `--workers` has a subclass.
    """

    #: The bytes of bodies and answers in transit, if other processes hold some too.
    bytes_held: Total | None = None

    def states(self) -> list[WorkerState]:
        return []

    def own(self) -> Iterable[OwnNumbers]:
        """Return the numbers that each process reports about itself, and those of ended
        processes.
        """
        return ()

    def in_flight_on(self, device: Device) -> int:
        """Return how many requests those processes have in flight on a device."""
        return 0

    async def journals(self) -> list[Any]:
        """Return the journals of those processes."""
        return []

    def log_changed(self, settings: LogSettings) -> None: ...

    def access_changed(self, text: str) -> None:
        """Report a new share of logged requests (`Journal.set_access`)."""

    def drain(self) -> None:
        """Report that the gateway is not ready from now on."""
