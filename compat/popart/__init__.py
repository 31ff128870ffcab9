"""What programs that use `popxl` ask of `popart`: exceptions, devices, sessions, and
views of graphs.

Graphs are built with `popxl`; what of `popart` builds graphs itself is not there.
"""

# ruff: noqa: N801, N802 - the names are the original's
from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

import popir
from popart.devices import (
    DeviceConnectionType,
    DeviceInfo,
    DeviceManager,
    DeviceSelectionCriterion,
    DeviceType,
    SyncPattern,
)
from popart.logs import Logger, getLogger
from popart.sessions import (
    AnchorReturnType,
    DataFlow,
    InferenceSession,
    PyStepIO,
)
from popart.views import DataType
from popir import DeviceError, IrError, RunError, ValueOutOfRange

popart_exception = IrError


class popart_internal_exception(popart_exception):
    """A mistake of the library's own."""


class popart_runtime_error(popart_exception):
    """Something went wrong while it ran."""


poplar_exception = DeviceError
poplar_runtime_error = RunError
poplar_application_runtime_error = ValueOutOfRange
exception = error = popart_exception


class VirtualGraphMode(Enum):
    """How operators get to devices: as the program says."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


class ReductionType(Enum):
    """How losses are reduced."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class CommGroupType(Enum):
    """How replicas are grouped."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    Ungrouped = 3


class VariableRetrievalMode(Enum):
    """Which replicas' values come back."""

    OnePerGroup = 0
    AllReduceReplicas = 1
    AllReplicas = 2


class VariableSettings:
    """Which replicas hold the same values of a variable."""

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
        """The distance of the members of a group."""
        return self._stride

    def getGroupSize(self) -> int | None:
        """Members of each group; None: all."""
        return self._size

    def getRetrievalMode(self) -> VariableRetrievalMode:
        """Which replicas' values come back."""
        return self._mode

    def isUsingCommGroup(self) -> bool:
        """Never here."""
        return False

    def groups(self, replicas: int) -> list[list[int]]:
        """The replicas of each group."""
        assignment = popir.strided(replicas, self._stride, self._size).assignment
        found: list[list[int]] = [[] for _ in range(max(assignment) + 1)]
        for replica, group in enumerate(assignment):
            found[group].append(replica)
        return found

    def shapeOnReplica(
        self, full_shape: Any, replicas: int, name: str = ""
    ) -> tuple[int, ...]:
        """Of the host's shape what one replica has: several groups lead it."""
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


__all__ = (
    "AnchorReturnType",
    "CommGroupType",
    "DataFlow",
    "DataType",
    "DeviceConnectionType",
    "DeviceInfo",
    "DeviceManager",
    "DeviceSelectionCriterion",
    "DeviceType",
    "InferenceSession",
    "Logger",
    "PyStepIO",
    "ReductionType",
    "SyncPattern",
    "VariableRetrievalMode",
    "VariableSettings",
    "VirtualGraphMode",
    "error",
    "exception",
    "getLogger",
    "popart_exception",
    "popart_internal_exception",
    "popart_runtime_error",
    "poplar_application_runtime_error",
    "poplar_exception",
    "poplar_runtime_error",
)


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"popart.{name} is not there: of popart there is what programs of popxl use. "
        "Custom operators in C++ are none of it; an operator of ONNX Runtime's contrib "
        "domain may do"
    )
