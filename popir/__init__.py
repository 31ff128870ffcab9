"""Graphs of operators: built, differentiated, lowered to what the engine runs.

This is what `popxl` is a face of. Operators are records (`popir.ops`); importing this
package imports neither onnx nor the engine, lowering does. docs/popir.md describes it.
"""

from popir import ops as _ops  # noqa: F401 - registers the operators
from popir.autodiff import Connection, Gradients, differentiate
from popir.dtypes import (
    DTYPES,
    NP_FLOAT8_143,
    NP_FLOAT8_152,
    DType,
    dtype_of,
    from_carrier,
    to_carrier,
)
from popir.errors import IrError, NotYet
from popir.float8 import best_scale, decode, encode
from popir.grouping import Groups, from_assignment, refined, strided
from popir.ir import Graph, Ir, Operator, Order, Stream, Tensor
from popir.records import Settings, Spec
from popir.seeds import (
    MAX_UINT64,
    create_seeds,
    two_uint32_to_uint64,
    uint64_to_two_uint32,
)

__all__ = (
    "DTYPES",
    "MAX_UINT64",
    "NP_FLOAT8_143",
    "NP_FLOAT8_152",
    "Connection",
    "DType",
    "Gradients",
    "Graph",
    "Groups",
    "Ir",
    "IrError",
    "NotYet",
    "Operator",
    "Order",
    "Settings",
    "Spec",
    "Stream",
    "Tensor",
    "best_scale",
    "create_seeds",
    "decode",
    "differentiate",
    "dtype_of",
    "encode",
    "from_assignment",
    "from_carrier",
    "refined",
    "strided",
    "to_carrier",
    "two_uint32_to_uint64",
    "uint64_to_two_uint32",
)
