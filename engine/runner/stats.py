"""Immutable snapshots of the runner's state, for metrics and logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.devices.linked_device import LinkedDevice
from engine.runner.replica_lines import ReplicaLines


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """State of a `ModelRunner`: its replicas and how many are ready, the requests in
    flight, and those that no run has taken. Also the lines of requests (by level and
    weight), late answers to cancelled requests, and restarts of its devices.
    """

    name: str
    replicas: int
    ready: int
    in_flight: int
    awaiting: int
    lines: int
    late: int
    restarts: int

    @classmethod
    def of(
        cls,
        name: str,
        replicas: Sequence[ReplicaLines | None],
        devices: Sequence[LinkedDevice],
    ) -> RunnerStats:
        """Return the state of these replicas (None: not loaded) on their devices."""
        loaded = [lines for lines in replicas if lines is not None]
        channels = [line for lines in loaded for line in lines.all]
        return cls(
            name=name,
            replicas=len(replicas),
            ready=sum(lines.default.usable for lines in loaded),
            in_flight=sum(c.in_flight for c in channels),
            awaiting=sum(c.flight.awaiting for c in channels),
            lines=len(channels),
            late=sum(c.late for c in channels),
            restarts=sum(device.restarts for device in devices),
        )
