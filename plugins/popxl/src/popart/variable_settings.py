"""Groups of replicas that hold the same values of a variable."""

# ruff: noqa: N802 - the names are the original's
from __future__ import annotations

from typing import Any

import numpy as np

import popir
from popart.enums import VariableRetrievalMode
from popir import IrError


class VariableSettings:
    """Groups of replicas that hold the same values of a variable."""

    def __init__(
        self,
        stride: int = 1,
        group_size: int | None = None,
        mode: VariableRetrievalMode = VariableRetrievalMode.OnePerGroup,
    ) -> None:
        self._stride = stride
        self._size = group_size
        self._mode = mode

    def getStride(self) -> int:
        """Return the distance of the members of a group."""
        return self._stride

    def getGroupSize(self) -> int | None:
        """Return the number of members of each group; None: all."""
        return self._size

    def getRetrievalMode(self) -> VariableRetrievalMode:
        """Return the choice of the replicas whose values the host retrieves."""
        return self._mode

    def isUsingCommGroup(self) -> bool:
        """Return False: there are no communication groups."""
        return False

    def groups(self, replicas: int) -> list[list[int]]:
        """Return the replicas of each group."""
        assignment = popir.strided(replicas, self._stride, self._size).assignment
        found: list[list[int]] = [[] for _ in range(max(assignment) + 1)]
        for replica, group in enumerate(assignment):
            found[group].append(replica)
        return found

    def shapeOnReplica(
        self, full_shape: Any, replicas: int, name: str = ""
    ) -> tuple[int, ...]:
        """Return one replica's part of the host's shape, which has several groups on
        its first axis.
        """
        shape = tuple(int(n) for n in np.asarray(full_shape).reshape(-1))
        count = len(self.groups(replicas))
        if self._mode is VariableRetrievalMode.AllReplicas:
            count = replicas
        if count == 1:
            return shape
        if not shape or shape[0] != count:
            raise IrError(
                f"{name!r} of shape {list(shape)} needs a first dimension of {count}"
            )
        return shape[1:]
