"""Enumerations that programs compare with."""

from __future__ import annotations

from enum import Enum, IntEnum

#: Types of elements.
DataType = Enum(
    "DataType",
    "UINT8 INT8 UINT16 INT16 INT32 INT64 UINT32 UINT64 BOOL FLOAT FLOAT16 BFLOAT16 "
    "DOUBLE COMPLEX64 COMPLEX128 STRING FLOAT8_143 FLOAT8_152 UNDEFINED",
    start=0,
)
#: Data types that have another name in `popxl`.
_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}


def data_type_of(name: str) -> DataType:
    """Return the data type that `popxl` calls `name`."""
    for theirs, ours in _NAMES.items():
        if name == ours:
            return DataType[theirs]
    return DataType[name.upper()]


def name_of(data_type: DataType) -> str:
    """Return the name that `popxl` has for a data type."""
    return _NAMES.get(data_type.name, data_type.name.lower())


#: Kinds of tensors.
TensorType = IntEnum("TensorType", "ActGrad Const Stream Unknown Variable N", start=0)
#: Compute tiles or tiles for exchange.
TileSet = IntEnum("TileSet", "Compute IO Undefined N", start=0)
#: The program that an operator belongs to.
ExecutionContext = IntEnum(
    "ExecutionContext",
    "Normal AccumulateOuterFragment WeightsFromHostFragment WeightsToHostFragment "
    "OptimizerFromHostFragment Subgraph",
    start=0,
)
#: Types of partial sums. They are stored and have no effect.
MatMulPartialsType = Enum("MatMulPartialsType", "HALF FLOAT", start=0)
#: Updates of the accumulator of an Accumulate operator.
AccumulationType = Enum(
    "AccumulationType",
    "Add DampenedAdd DampenedAddSquare DecayAdd DecayAddSquare MovingAverage "
    "MovingAverageSquare Infinity Mean",
    start=0,
)
#: Contents of an Init operator's result.
InitType = Enum("InitType", "NoInit Zero", start=0)
#: Reductions of a collective.
CollectiveOperator = Enum(
    "CollectiveOperator",
    "Add Mean Mul Min Max LogicalAnd LogicalOr SquareAdd Local",
    start=0,
)
#: Meanings of an input of a gradient graph: a forward tensor or its gradient.
ExpectedConnectionType = Enum("ExpectedConnectionType", "Fwd FwdGrad", start=0)
#: Requirement that a schedule is optimal. It has no effect, because there is only
#: one schedule.
RequireOptimalSchedule = Enum("RequireOptimalSchedule", "No Yes", start=0)
#: Placement of operators on devices, as the program sets it.
VirtualGraphMode = Enum("VirtualGraphMode", "Off Manual Auto ExecutionPhases", start=0)
#: Reductions of losses.
ReductionType = Enum("ReductionType", "Sum Mean NoReduction", start=0)
#: Groupings of replicas.
CommGroupType = Enum("CommGroupType", "All Consecutive Orthogonal Ungrouped", start=0)
#: Choice of the replicas whose values the host retrieves.
VariableRetrievalMode = Enum(
    "VariableRetrievalMode", "OnePerGroup AllReduceReplicas AllReplicas", start=0
)
