"""Reductions across replicas: not there yet; they say so."""

from __future__ import annotations

from enum import Enum
from functools import partial

import popir
from popxl.context import get_ir
from popxl.ops.missing import missing
from popxl.replica_grouping import ReplicaGrouping


class CommGroupType(Enum):
    """How replicas are grouped."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    Ungrouped = 3


class CommGroup:
    """Which replicas work together: by a kind and, for two kinds, a size."""

    def __init__(
        self, type: CommGroupType | None = None, replicaGroupSize: int | None = None
    ) -> None:
        self._type = CommGroupType.All if type is None else CommGroupType(type)
        self._size = int(replicaGroupSize or 0)

    @property
    def type(self) -> CommGroupType:
        """How replicas are grouped."""
        return self._type

    @property
    def replicaGroupSize(self) -> int:  # noqa: N802 - the original's name
        """Members of each group."""
        return self._size

    def toReplicaGrouping(self, numReplicas: int) -> ReplicaGrouping:  # noqa: N802
        """The groups among so many replicas, of the current Ir."""
        kind, size, stride = self._type, self._size, 1
        if kind is CommGroupType.All:
            size = numReplicas
        elif kind is CommGroupType.Ungrouped:
            size = 1
        elif kind is CommGroupType.Orthogonal:
            stride = numReplicas // size
        groups = popir.strided(numReplicas, stride, size)
        return ReplicaGrouping._make(get_ir(), groups)


_missing = partial(missing, where="collectives", why=": one replica runs")

all_reduce = _missing("all_reduce")
all_reduce_identical_inputs = _missing("all_reduce_identical_inputs")
all_reduce_identical_grad_inputs = _missing("all_reduce_identical_grad_inputs")
replica_sharded_slice = _missing("replica_sharded_slice")
replicated_all_gather = _missing("replicated_all_gather")
replicated_all_reduce = _missing("replicated_all_reduce")
replicated_all_reduce_ = _missing("replicated_all_reduce_")
replicated_reduce_scatter = _missing("replicated_reduce_scatter")
replicated_slice = _missing("replicated_slice")
