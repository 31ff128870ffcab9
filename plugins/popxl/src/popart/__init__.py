"""The part of `popart` that programs with `popxl` use: exceptions, devices, sessions,
and views of graphs.

Graphs are built with `popxl`; the parts of `popart` that build graphs themselves are
missing.
"""

# ruff: noqa: N801 - the names are the original's
from __future__ import annotations

from typing import Any

from popart import _internal as _internal
from popart.devices import (
    DeviceConnectionType,
    DeviceInfo,
    DeviceManager,
    DeviceSelectionCriterion,
    DeviceType,
    SyncPattern,
)
from popart.enums import (
    CommGroupType,
    DataType,
    ReductionType,
    VariableRetrievalMode,
    VirtualGraphMode,
)
from popart.logs import Logger, getLogger
from popart.session_options import SessionOptions
from popart.sessions import AnchorReturnType, DataFlow, InferenceSession, PyStepIO
from popart.variable_settings import VariableSettings
from popir import DeviceError, IrError, RunError, ValueOutOfRange

popart_exception = IrError


class popart_internal_exception(popart_exception):
    """An error inside the library."""


class popart_runtime_error(popart_exception):
    """A run failed."""


poplar_exception = DeviceError
poplar_runtime_error = RunError
poplar_application_runtime_error = ValueOutOfRange
exception = error = popart_exception


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
    "SessionOptions",
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
        f"popart.{name} is not supported: popart has only the names that "
        "programs of popxl use. Custom operators in C++ are not supported; "
        "write one in Python with popxl.custom.CustomOperator"
    )
