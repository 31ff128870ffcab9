"""The runs of this moment in a device process: which ones, and for how long."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.transport.device_messages import RunTold

if TYPE_CHECKING:
    from engine.worker.batch import RunningBatch
    from engine.worker.replica import Replica


def runs_of(replicas: Iterable[Replica]) -> list[RunningBatch]:
    """Return the runs in progress of these replicas. For any thread."""
    running = (replica.running for replica in replicas)
    return [run for run in running if run is not None]


def status_of(replica: Replica) -> RunTold:
    """Return the state of the present run of a replica. For any thread."""
    running = replica.running
    if running is None:
        return RunTold(replica.number, 0, 0, 0)
    now, unwanted = time.monotonic_ns(), running.unwanted_since
    since = running.since
    return RunTold(
        replica.number, since, now - since, now - unwanted if unwanted else 0
    )
