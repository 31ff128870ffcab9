"""Small values that programs make and pass as arguments."""

# ruff: noqa: N802 - the names are the original's
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import popir
from popart.enums import ExpectedConnectionType
from popart.view import GraphId


@dataclass(frozen=True)
class NumInputs:
    """Number of an operator's inputs."""

    min: int = 0
    max: int = 0

    def __init__(self, first: int = 0, last: int | None = None) -> None:
        object.__setattr__(self, "min", first)
        object.__setattr__(self, "max", first if last is None else last)


@dataclass(frozen=True)
class OperatorIdentifier:
    """Domain, type and version of an operator."""

    domain: str
    type: str
    version: int
    numInputs: NumInputs = NumInputs()  # noqa: N815 - the original's name
    numOutputs: int = 0  # noqa: N815 - the original's name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OperatorIdentifier):
            return NotImplemented
        mine = (self.domain, self.type, self.version)
        return mine == (other.domain, other.type, other.version)

    def __hash__(self) -> int:
        return hash((self.domain, self.type, self.version))

    def __str__(self) -> str:
        return f"{self.domain}.{self.type}:{self.version}"


@dataclass(frozen=True)
class ExpectedConnection:
    """Meaning of an input or output of a gradient graph."""

    fwdId: str  # noqa: N815 - the original's name
    type: ExpectedConnectionType


class BwdGraphInfo:
    """A gradient graph, and the meaning of its inputs and outputs."""

    def __init__(
        self,
        bwdGraphId: Any,  # noqa: N803 - the original's name
        expectedInputs: Iterable[ExpectedConnection],  # noqa: N803
        expectedOutputs: Iterable[ExpectedConnection],  # noqa: N803
    ) -> None:
        self.bwdGraphId = GraphId(str(bwdGraphId))
        self.expectedInputs = list(expectedInputs)
        self.expectedOutputs = list(expectedOutputs)


class ReplicaGrouping:
    """Groups of replicas with one stride."""

    def __init__(
        self, num_replicas: int, stride: int = 1, group_size: int | None = None
    ) -> None:
        try:
            self._groups = popir.strided(num_replicas, stride, group_size)
        except ValueError as error:
            raise popir.IrError(str(error)) from None

    def getNumReplicas(self) -> int:
        return self._groups.num_replicas

    def getStride(self) -> int:
        """Return the distance of the members of a group."""
        return self._groups.stride or 1

    def getGroupSize(self) -> int:
        """Return the number of members of each group."""
        return self._groups.size

    def getNumGroups(self) -> int:
        return self._groups.num_groups

    def getGroupIndexAt(self, replica: int) -> int:
        """Return the group of a replica."""
        self._check(replica, self.getNumReplicas())
        return self._groups.assignment[replica]

    def getIndexInGroupAt(self, replica: int) -> int:
        """Return the position of a replica in its group."""
        group = self.getGroupIndexAt(replica)
        return self._groups.members[group].index(replica)

    def getReplicaAt(self, group: int, index: int = 0) -> int:
        """Return a member of a group."""
        self._check(group, self.getNumGroups())
        self._check(index, self.getGroupSize())
        return self._groups.members[group][index]

    def getReplicasAt(self, group: int) -> list[int]:
        self._check(group, self.getNumGroups())
        return list(self._groups.members[group])

    def getTranspose(self) -> ReplicaGrouping:
        """Return groups across these groups: all first members, all second members, and
        so on.
        """
        turned = self._groups.transposed()
        if turned.stride is None:
            raise popir.IrError(f"the transpose of {self} has no constant stride")
        made = ReplicaGrouping.__new__(ReplicaGrouping)
        made._groups = turned
        return made

    def _check(self, index: int, count: int) -> None:
        if not 0 <= index < count:
            raise popir.IrError(f"{index} is out of range: {self} has {count}")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ReplicaGrouping)
            and self._groups.assignment == other._groups.assignment
        )

    def __hash__(self) -> int:
        return hash(self._groups.assignment)

    def __repr__(self) -> str:
        return (
            f"ReplicaGrouping(numReplicas={self.getNumReplicas()}, "
            f"stride={self.getStride()}, groupSize={self.getGroupSize()})"
        )
