"""Several instances of one program, by the original's names.

`poprun` starts the instances; docs/how-to/write-popxl.md says how.
"""

# ruff: noqa: N802 - the names are the original's
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from popdist import popart
from popir.instances import connect, identity, is_connected, is_launched

__all__ = (
    "execute_on_instances",
    "finalizeBackend",
    "getInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "isBackendInitialized",
    "isPopdistEnvSet",
    "popart",
    "synchronize",
)


def init() -> None:
    """Connect to the other instances, if there are any."""
    if identity().count > 1:
        connect()


def isBackendInitialized() -> bool:
    """Return whether this process is connected to the other instances."""
    return is_connected()


def finalizeBackend() -> None:
    """Leave the program. Exchanges with this instance fail after this call."""
    if is_connected():
        connect().leave()


def isPopdistEnvSet() -> bool:
    """Return whether a launcher of instances started this process."""
    return is_launched()


def getNumTotalReplicas() -> int:
    """Return the replicas of all instances."""
    return identity().replicas


def getNumLocalReplicas() -> int:
    """Return the replicas of this instance."""
    return identity().local_replicas


def getReplicaIndexOffset() -> int:
    """Return the number of this instance's first replica."""
    return identity().offset


def getNumInstances() -> int:
    """Return the number of instances."""
    return identity().count


def getInstanceIndex() -> int:
    """Return the number of this instance, from 0."""
    return identity().index


def getNumIpusPerReplica() -> int:
    """Return the value of `poprun --ipus-per-replica`, which has no effect."""
    return identity().ipus_per_replica


def synchronize() -> None:
    """Wait until all instances have reached this call."""
    if identity().count > 1:
        connect().barrier()


def execute_on_instances(
    instances: Iterable[int], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call `function` in these instances only, and return its result. Return None in
    the others.
    """
    if identity().index in set(instances):
        return function(*args, **kwargs)
    return None
