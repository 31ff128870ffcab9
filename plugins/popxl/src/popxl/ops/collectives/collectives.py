"""Common part of collectives: reductions and cooperating replicas."""

from __future__ import annotations

from typing import Literal, get_args

import popir
from popart.enums import CollectiveOperator
from popart.enums import CommGroupType as CommGroupType
from popxl.context import get_ir
from popxl.replica_grouping import ReplicaGrouping

CollectiveOps = Literal["add", "mean", "mul", "min", "max", "and", "or", "square_add"]
#: In the original `mul` also stands for the mean.
OP_MAP = {
    "add": CollectiveOperator.Add,
    "mean": CollectiveOperator.Mean,
    "mul": CollectiveOperator.Mean,
    "min": CollectiveOperator.Min,
    "max": CollectiveOperator.Max,
    "and": CollectiveOperator.LogicalAnd,
    "or": CollectiveOperator.LogicalOr,
    "square_add": CollectiveOperator.SquareAdd,
    "local": CollectiveOperator.Local,
}


def to_collective_op(op: CollectiveOps | str) -> CollectiveOperator:
    """Return the member of the enumeration for `op`; ValueError if there is none."""
    if op not in get_args(CollectiveOps):
        raise ValueError(f"Not a valid collective operation: {op!r}")
    return OP_MAP[op]


class CommGroup:
    """Group of cooperating replicas: a kind and, for two kinds, a size."""

    def __init__(
        self, type: CommGroupType | None = None, replicaGroupSize: int | None = None
    ) -> None:
        self._type = CommGroupType.All if type is None else CommGroupType(type)
        self._size = int(replicaGroupSize or 0)

    @property
    def type(self) -> CommGroupType:
        """Return how replicas are grouped."""
        return self._type

    @property
    def replicaGroupSize(self) -> int:  # noqa: N802 - the original's name
        """Members of each group."""
        return self._size

    def toReplicaGrouping(self, numReplicas: int) -> ReplicaGrouping:  # noqa: N802
        """Return the groups among so many replicas, of the current Ir."""
        kind, size, stride = self._type, self._size, 1
        if kind is CommGroupType.All:
            size = numReplicas
        elif kind is CommGroupType.Ungrouped:
            size = 1
        elif kind is CommGroupType.Orthogonal:
            stride = numReplicas // size
        groups = popir.strided(numReplicas, stride, size)
        return ReplicaGrouping._make(get_ir(), groups)
