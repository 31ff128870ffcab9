"""Records of operators: results, ONNX nodes and gradient of each in one record.

A record has functions for the shape and type of the results (`infer`), for its ONNX
nodes (`lower`), for its gradients (`grads`), and for its effect on storage: a view of
its inputs (`view`), or a new value for its first input (`writes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from popir.dtypes import Array, DType, Shape
from popir.errors import IrError

if TYPE_CHECKING:
    from popir.builder import Builder, Value

Attributes: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spec:
    """Type and shape of a tensor; `meta_shape` is the shape of the whole if it is a
    shard.
    """

    dtype: DType
    shape: Shape
    meta_shape: Shape = ()


class OpCall:
    """An operator as its record sees it: inputs, outputs, attributes."""

    __slots__ = ("attributes", "inputs", "outputs")

    def __init__(
        self, inputs: Sequence[Spec], outputs: Sequence[Spec], attributes: Attributes
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.attributes = attributes

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]


#: The types of all gradient operators with a known rule.
GRADIENT_TYPES: set[str] = set()

Infer: TypeAlias = Callable[[OpCall], Sequence[Spec]]
Lower: TypeAlias = "Callable[[Builder, OpCall, list[Value]], Sequence[Value]]"
Host: TypeAlias = "Callable[[OpCall, list[Array]], Sequence[Array]]"
Put: TypeAlias = "Callable[[Builder, OpCall, list[Value], Value], Sequence[Value]]"


@dataclass(frozen=True, slots=True)
class GradRule:
    """One gradient operator of an operator.

    `needs` are its inputs in order: `g0` the gradient of output 0, `i0` the forward
    input 0, `o0` the forward output 0. `gives` are the forward inputs whose gradients
    it computes. `lower` receives them by those names.
    """

    type: str
    needs: tuple[str, ...]
    gives: tuple[int, ...]
    lower: Callable[[Grad], Sequence[Value]]
    host: Host | None = None
    """A function of NumPy arrays in place of `lower`.

    It receives the forward operator.
    """
    is_users: bool = False
    """True for a Python class of the user."""
    records: list[Record] = field(default_factory=list, compare=False, repr=False)
    """The record of the gradient operator, once it was needed."""

    def __post_init__(self) -> None:
        GRADIENT_TYPES.add(self.type)


_Rules = TypeVar("_Rules", bound=Callable[..., Any])


def makes(*types: str) -> Callable[[_Rules], _Rules]:
    """Declare the gradient operators of a function that makes its rules for a call."""
    GRADIENT_TYPES.update(types)
    return lambda function: function


class Grad:
    """Tools of a gradient rule: `g["i0"]`, specs, attributes, the builder."""

    __slots__ = ("b", "call", "values")

    def __init__(self, b: Builder, call: OpCall, values: Mapping[str, Value]) -> None:
        self.b = b
        self.call = call
        """The forward operator."""
        self.values = values

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def shape(self, index: int) -> Shape:
        """Return the shape of the forward input `index`."""
        return self.call.inputs[index].shape


def has_gradient(spec: Spec) -> bool:
    """Return whether a tensor like `spec` has a gradient. Integers have one, because
    they are numbers.
    """
    return spec.dtype.is_float or spec.dtype.is_int


def no_gradient(_: OpCall) -> None:
    """Return no gradient: the operator's inputs do not depend on its results."""
    return


@dataclass(frozen=True, slots=True)
class Record:
    """One operator."""

    type: str
    infer: Infer
    lower: Lower | None = None
    """None: the lowering handles the operator itself (calls, streams)."""
    grads: Callable[[OpCall], Sequence[GradRule] | None] = no_gradient
    """Its gradient rules; None if gradients stop at the operator."""
    put: Put | None = None
    """For a view: given the values of its inputs and a new value of its result, return
    the new values of its inputs.
    """
    writes: bool = False
    """Its result is the new value of its first input's storage."""
    host: Host | None = None
    """Instead of `lower`: a function of NumPy arrays, for the caller's process."""
    refuses: str = ""
    """Return why a graph that contains it cannot be differentiated; empty if it can."""
    opset: tuple[str, int] | None = None
    """Domain and version, if it has them."""
    is_users: bool = False
    """Whether it is a Python class of the user: its name does not identify its
    behaviour.
    """


RECORDS: dict[str, Record] = {}
#: Operators that accept float8: they move elements, or are made for float8.
TAKES_FLOAT8 = frozenset(
    {
        "Call",
        "CastThenPow2Scale",
        "Concat",
        "ConcatInplace",
        "ConvPow2Scaled",
        "ConvTransposePow2Scaled",
        "CopyVarUpdate",
        "Detach",
        "DetachInplace",
        "DynamicSlice",
        "DynamicUpdate",
        "DynamicUpdateInplace",
        "Gather",
        "HostLoad",
        "HostStore",
        "Identity",
        "If",
        "IoTileCopy",
        "IpuCopy",
        "Loop",
        "MatMulPow2Scaled",
        "Pow2ScaleThenCast",
        "PrintTensor",
        "RemoteLoad",
        "RemoteLoadInplace",
        "RemoteStore",
        "ReplicatedAllGather",
        "ReplicatedSlice",
        "Reshape",
        "ReshapeInplace",
        "Slice",
        "SliceInplace",
        "Split",
        "Subsample",
        "TiedGather",
        "Transpose",
        "TransposeInplace",
    }
)


def register(record: Record) -> Record:
    """Make `record` known under its type."""
    assert record.type not in RECORDS, record.type
    RECORDS[record.type] = record
    return record


def operator_types() -> list[str]:
    """Return the types of all operators, gradient operators included."""
    return sorted({*RECORDS, *GRADIENT_TYPES})


def record_of(type_: str) -> Record:
    """Return the record of an operator type; IrError if there is none."""
    found = RECORDS.get(type_)
    if found is None:
        raise IrError(f"there is no operator of type {type_}")
    return found


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Settings of an operator from the contexts of its construction."""

    scopes: tuple[str, ...] = ()
    ipu: int | None = 0
    tile_set: str = "compute"
    fragment: str = "Normal"
    order: object = field(default=None, compare=False)
    """Order of the operator for `IrGraph.add`: an `Order`, or None for no order."""
