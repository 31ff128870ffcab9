"""Enumerations that programs compare with."""

from __future__ import annotations

from enum import Enum, IntEnum


class DataType(Enum):
    """Types of elements."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    UINT32 = 6
    UINT64 = 7
    BOOL = 8
    FLOAT = 9
    FLOAT16 = 10
    BFLOAT16 = 11
    DOUBLE = 12
    COMPLEX64 = 13
    COMPLEX128 = 14
    STRING = 15
    FLOAT8_143 = 16
    FLOAT8_152 = 17
    UNDEFINED = 18


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


class TensorType(IntEnum):
    """Kinds of tensors."""

    ActGrad = 0
    Const = 1
    Stream = 2
    Unknown = 3
    Variable = 4
    N = 5


class TileSet(IntEnum):
    """Compute tiles or tiles for exchange."""

    Compute = 0
    IO = 1
    Undefined = 2
    N = 3


class ExecutionContext(IntEnum):
    """The program that an operator belongs to."""

    Normal = 0
    AccumulateOuterFragment = 1
    WeightsFromHostFragment = 2
    WeightsToHostFragment = 3
    OptimizerFromHostFragment = 4
    Subgraph = 5


class MatMulPartialsType(Enum):
    """Types of partial sums. They are stored and have no effect."""

    HALF = 0
    FLOAT = 1


class AccumulationType(Enum):
    """Updates of the accumulator of an Accumulate operator."""

    Add = 0
    DampenedAdd = 1
    DampenedAddSquare = 2
    DecayAdd = 3
    DecayAddSquare = 4
    MovingAverage = 5
    MovingAverageSquare = 6
    Infinity = 7
    Mean = 8


class InitType(Enum):
    """Contents of an Init operator's result."""

    NoInit = 0
    Zero = 1


class CollectiveOperator(Enum):
    """Reductions of a collective."""

    Add = 0
    Mean = 1
    Mul = 2
    Min = 3
    Max = 4
    LogicalAnd = 5
    LogicalOr = 6
    SquareAdd = 7
    Local = 8


class ExpectedConnectionType(Enum):
    """Meanings of an input of a gradient graph: a forward tensor or its gradient."""

    Fwd = 0
    FwdGrad = 1


class RequireOptimalSchedule(Enum):
    """Requirement that a schedule is optimal. It has no effect, because there is only
    one schedule.
    """

    No = 0
    Yes = 1


class VirtualGraphMode(Enum):
    """Placement of operators on devices, as the program sets it."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


class ReductionType(Enum):
    """Reductions of losses."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class CommGroupType(Enum):
    """Groupings of replicas."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    Ungrouped = 3


class VariableRetrievalMode(Enum):
    """Choice of the replicas whose values the host retrieves."""

    OnePerGroup = 0
    AllReduceReplicas = 1
    AllReplicas = 2
