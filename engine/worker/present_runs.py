"""The runs of this moment in a device process: which ones, and for how long."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from engine.worker.batch import RunningBatch
    from engine.worker.replica import Replica


class RunStatus(NamedTuple):
    """A present run: the number of its replica, when it began (`time.monotonic_ns`),
    how long it has been running, and how long ago it was told to end (0: it was not),
    in nanoseconds.

    The time in which results wait for a client does not count. Then all but the number
    are 0.
    """

    replica: int
    since: int
    running_ns: int
    unwanted_ns: int


def runs_of(replicas: Iterable[Replica]) -> list[RunningBatch]:
    """Return the runs in progress of these replicas. For any thread."""
    running = (replica.running for replica in replicas)
    return [run for run in running if run is not None]


def status_of(replica: Replica) -> RunStatus:
    """Return the state of the present run of a replica. For any thread."""
    running = replica.running
    if running is None:
        return RunStatus(replica.number, 0, 0, 0)
    now, unwanted = time.monotonic_ns(), running.unwanted_since
    since = running.since
    return RunStatus(
        replica.number, since, now - since, now - unwanted if unwanted else 0
    )
