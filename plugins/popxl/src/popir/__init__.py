"""Graphs of operators: built, differentiated, lowered to executables of the engine.

`popxl` is a thin front end of this package. Operators are records (`popir.ops`).
Importing the package imports neither onnx nor the engine; lowering imports both.
plugins/popxl/README.md describes it.
"""

from popir import ops as _ops  # noqa: F401 - registers the operators
from popir.aliases import changed_inputs, location_of, schedule, sharing
from popir.autodiff import GradientConnection, Gradients, differentiate
from popir.builder import Builder, Value
from popir.dot import dot_of
from popir.dtypes import (
    DTYPES,
    NP_FLOAT8_143,
    NP_FLOAT8_152,
    DType,
    dtype_of,
    to_carrier,
)
from popir.editing import (
    connect_output,
    copy_into,
    disconnect,
    disconnect_output,
    erase,
    remove_isolated,
    replace,
    run_before,
)
from popir.errors import DeviceError, IrError, NotYet, RunError, ValueOutOfRange
from popir.export import export_popef
from popir.float8 import (
    best_scale,
    decode,
    encode,
    exponent_range,
    exponents_of,
    loss_of,
)
from popir.grouping import Groups, from_assignment, refined, shard_size, strided
from popir.ir import Ir, IrGraph, IrTensor, Operator, Order, Stream
from popir.placement import Placement
from popir.records import (
    RECORDS,
    Grad,
    GradRule,
    OpCall,
    OperatorSettings,
    Record,
    Spec,
    has_gradient,
    operator_types,
)
from popir.remote import RemoteBuffer
from popir.rewriting import decompose_sums, merge_exchanges
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
    "RECORDS",
    "Builder",
    "DType",
    "DeviceError",
    "Grad",
    "GradRule",
    "GradientConnection",
    "Gradients",
    "Groups",
    "Ir",
    "IrError",
    "IrGraph",
    "IrTensor",
    "NotYet",
    "OpCall",
    "Operator",
    "OperatorSettings",
    "Order",
    "Placement",
    "Record",
    "RemoteBuffer",
    "RunError",
    "Spec",
    "Stream",
    "Value",
    "ValueOutOfRange",
    "best_scale",
    "changed_inputs",
    "connect_output",
    "copy_into",
    "create_seeds",
    "decode",
    "decompose_sums",
    "differentiate",
    "disconnect",
    "disconnect_output",
    "dot_of",
    "dtype_of",
    "encode",
    "erase",
    "exponent_range",
    "exponents_of",
    "export_popef",
    "from_assignment",
    "has_gradient",
    "location_of",
    "loss_of",
    "merge_exchanges",
    "operator_types",
    "refined",
    "remove_isolated",
    "replace",
    "run_before",
    "schedule",
    "shard_size",
    "sharing",
    "strided",
    "to_carrier",
    "two_uint32_to_uint64",
    "uint64_to_two_uint32",
)
