"""Settings of `popart` for the instance that this process is."""

# ruff: noqa: N802, N803 - the names are the original's
from __future__ import annotations

from typing import Any

import popart
from popir.instances import identity


def configureSessionOptions(options: Any) -> None:
    """Set the number of replicas, here and in all instances."""
    this = identity()
    options.enableDistributedReplicatedGraphs = this.count > 1
    options.globalReplicaOffset = this.offset
    options.globalReplicationFactor = this.replicas
    options.replicatedGraphCount = this.local_replicas
    options.enableReplicatedGraphs = this.local_replicas > 1


def getDevice(
    connectionType: Any = None,
    syncPattern: Any = None,
    onDemandTimeout: float = 0.0,
    **_: Any,
) -> popart.DeviceInfo:
    """Return a device for the replicas of this instance, in this process."""
    this = identity()
    units = this.local_replicas * this.ipus_per_replica
    return popart.DeviceManager().createIpuModelDevice({"numIPUs": units})
