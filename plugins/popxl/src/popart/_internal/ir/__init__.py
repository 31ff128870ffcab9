"""The part below `popxl` that programs use: views, classes of operators, enumerations.

Views show the graphs of `popir`. They do not change how programs run.
"""

from __future__ import annotations

from popart._internal.ir import op, patterns, view
from popart._internal.ir.values import (
    BwdGraphInfo,
    ExpectedConnection,
    NumInputs,
    OperatorIdentifier,
    ReplicaGrouping,
)
from popart.attributes import ConvOptions as MultiConvOptions
from popart.attributes import OptimizerValue, Settings
from popart.enums import (
    AccumulationType,
    CollectiveOperator,
    CommGroupType,
    DataType,
    ExecutionContext,
    ExpectedConnectionType,
    InitType,
    ReductionType,
    RequireOptimalSchedule,
    TensorType,
    TileSet,
    VariableRetrievalMode,
    VirtualGraphMode,
)
from popart.operators import OpView as Op
from popart.session_options import SessionOptions
from popart.variable_settings import VariableSettings
from popart.view import GraphId, TensorInfo
from popart.views import Consumers, TopoCons
from popart.views import GraphView as Graph
from popart.views import IrView as Ir
from popart.views import TensorView as Tensor

TensorId = str

__all__ = (
    "AccumulationType",
    "BwdGraphInfo",
    "CollectiveOperator",
    "CommGroupType",
    "Consumers",
    "DataType",
    "ExecutionContext",
    "ExpectedConnection",
    "ExpectedConnectionType",
    "Graph",
    "GraphId",
    "InitType",
    "Ir",
    "MultiConvOptions",
    "NumInputs",
    "Op",
    "OperatorIdentifier",
    "OptimizerValue",
    "ReductionType",
    "ReplicaGrouping",
    "RequireOptimalSchedule",
    "SessionOptions",
    "Settings",
    "Tensor",
    "TensorId",
    "TensorInfo",
    "TensorType",
    "TileSet",
    "TopoCons",
    "VariableRetrievalMode",
    "VariableSettings",
    "VirtualGraphMode",
    "op",
    "patterns",
    "view",
)
