"""Groups of replicas."""

from __future__ import annotations

import popart
import popir
from popart._internal.ir import ReplicaGrouping as Constant
from popxl.program import Program


class ReplicaGrouping:
    """Group of replicas with the same values. Made by an Ir."""

    _ir: Program
    _groups: popir.Groups

    def __init__(self) -> None:
        raise RuntimeError(
            "popxl.ReplicaGrouping cannot be constructed directly; use "
            "popxl.Ir.replica_grouping"
        )

    @classmethod
    def _make(cls, ir: Program, groups: popir.Groups) -> ReplicaGrouping:
        self = cls.__new__(cls)
        self._ir = ir
        self._groups = groups
        return self

    @property
    def _pb_replica_grouping(self) -> Constant:
        return Constant(self._groups.num_replicas, self.stride, self.group_size)

    @property
    def is_const(self) -> bool:
        """Return whether one stride leads through each group."""
        return self._groups.stride is not None

    @property
    def stride(self) -> int:
        """The distance of the members; NotImplementedError if it varies."""
        if self._groups.stride is None:
            raise NotImplementedError(
                "The stride of a ReplicaGrouping without a constant stride"
            )
        return self._groups.stride

    @property
    def group_size(self) -> int:
        """Members of each group."""
        return self._groups.size

    @property
    def num_groups(self) -> int:
        """Return the number of groups."""
        return self._groups.num_groups

    @property
    def assignment(self) -> list[int]:
        """Return the group of each replica."""
        return list(self._groups.assignment)

    @property
    def const_rg(self) -> ReplicaGrouping:
        """The groups with a constant stride that these are made of."""
        if self.is_const:
            return self
        return ReplicaGrouping._make(self._ir, popir.refined(self._groups)[0])

    @property
    def to_device_map(self) -> list[int] | None:
        """Return for each group of `const_rg` the group that contains it."""
        return None if self.is_const else popir.refined(self._groups)[1]

    @property
    def to_host_map(self) -> list[int] | None:
        """Return for each group the first of `const_rg` in it."""
        return None if self.is_const else popir.refined(self._groups)[2]

    def transpose(self) -> ReplicaGrouping:
        """Return the first members of all groups together, and so on."""
        return ReplicaGrouping._make(self._ir, self._groups.transposed())

    def _to_variable_settings(
        self, retrieval_mode: str | None = None
    ) -> popart.VariableSettings:
        modes = {
            "one_per_group": popart.VariableRetrievalMode.OnePerGroup,
            "all_replicas": popart.VariableRetrievalMode.AllReplicas,
        }
        mode = retrieval_mode or "one_per_group"
        if mode not in modes:
            raise ValueError(f"Invalid retrieval_mode: {retrieval_mode}")
        return popart.VariableSettings(self.stride, self.group_size, modes[mode])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReplicaGrouping):
            raise TypeError(
                f"Value must be of type popxl.ReplicaGrouping. Type: {type(other)}"
            )
        same = self._groups.assignment == other._groups.assignment
        return self._ir is other._ir and same

    def __hash__(self) -> int:
        return hash((self._ir, self._groups.assignment))

    def __repr__(self) -> str:
        if not self.is_const:
            return f"ReplicaGrouping(assignment={self.assignment})"
        return (
            f"ReplicaGrouping(num_replicas={self._groups.num_replicas}, "
            f"stride={self.stride}, group_size={self.group_size}, "
            f"num_groups={self.num_groups})"
        )
