"""ONNX nodes over values with known types and shapes, written like arithmetic.

Every node goes through `Builder.node`, which widens types without a kernel in ONNX
Runtime. The table `KERNELS` lists the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from popir.dtypes import AnyDtype, Array, Shape
from popir.errors import IrError, NotYet
from popir.grouping import Collective

_FLOATS = "float16 float32 float64"
_SIGNED = f"{_FLOATS} int8 int16 int32 int64"
_NUMBERS = f"{_FLOATS} int32 int64"
_ORDER = f"{_NUMBERS} int8 uint8 uint32 uint64"
KERNELS: dict[str, frozenset[str]] = {
    op: frozenset(types.split())
    for types, ops in {
        _SIGNED: "Neg",
        _NUMBERS: "Pow CumSum ReduceSum ReduceMean ReduceProd ReduceL1 ReduceL2 "
        "ReduceLogSum ReduceLogSumExp ReduceSumSquare",
        f"{_NUMBERS} uint32 uint64": "MatMul",
        _ORDER: "Max Min Clip",
        _FLOATS: "Ceil Floor Cos Sin Tanh Exp Log Sqrt Sigmoid Reciprocal Softmax",
        "float16 float32": "Erf Gelu Conv ConvTranspose AveragePool MaxPool Resize "
        "BatchNormalization RoiAlign",
        f"{_FLOATS} int8 int32": "Relu",
        f"{_NUMBERS} int8 uint8": "ReduceMax ReduceMin ArgMax ArgMin TopK",
        f"{_NUMBERS} int8 uint8 uint32": "Where",
    }.items()
    for op in ops.split()
}
"""ONNX operators whose kernels lack some types, and the types they support."""
#: Operators whose results are fractions: as integers almost all of them would be 0.
_FRACTIONS = {"Cos", "Sin", "Tanh", "Exp", "Log", "Sigmoid", "Erf", "Softmax"}
#: The first of these types is used that the operator takes and that can hold the
#: values.
_WIDER = {
    "bool": ("int32",),
    "int8": ("int32", "float32"),
    "uint8": ("int32", "float32"),
    "int16": ("int32", "float32"),
    "uint16": ("int32", "float32"),
    "int32": ("float64", "float32"),
    "uint32": ("int64", "float64", "float32"),
    "int64": ("float64", "float32"),
    "uint64": ("int64", "float64", "float32"),
    "float64": ("float32",),
}


def widened(operator: str, dtype: AnyDtype) -> AnyDtype:
    """Return the type in which ONNX Runtime runs `operator` over elements
    of `dtype`.
    """
    known = KERNELS.get(operator)
    if known is None or dtype.name in known:
        return dtype
    for name in _WIDER.get(dtype.name, ()):
        if name in known:
            return np.dtype(name)
    return dtype


@dataclass(eq=False, slots=True)
class Node:
    """One ONNX node."""

    operator: str
    inputs: list[Value | None]
    outputs: list[Value]
    attributes: dict[str, Any]


@dataclass(eq=False, slots=True)
class Block:
    """Nodes that become one ONNX graph, and the stream copies before and after it."""

    nodes: list[Node] = field(default_factory=list)
    stream_in: list[tuple[str, Value]] = field(default_factory=list)
    stream_out: list[tuple[Value, str]] = field(default_factory=list)


class Value:
    """A computed, streamed or constant value of known type and shape."""

    __slots__ = ("array", "b", "block", "dtype", "shape", "variable")

    def __init__(
        self,
        b: Builder,
        dtype: AnyDtype,
        shape: Shape,
        block: Block | None = None,
        array: Array | None = None,
        variable: str = "",
    ) -> None:
        self.b = b
        self.dtype = dtype
        self.shape = shape
        self.block = block
        """The block whose node computes it; None for other values."""
        self.array = array
        """The elements of a constant."""
        self.variable = variable
        """The variable of the executable that holds it; results get one later."""

    @property
    def size(self) -> int:
        return prod(self.shape)

    def __add__(self, other: Value | float) -> Value:
        return self.b.zip("Add", self, other)

    def __radd__(self, other: float) -> Value:
        return self.b.zip("Add", other, self)

    def __sub__(self, other: Value | float) -> Value:
        return self.b.zip("Sub", self, other)

    def __rsub__(self, other: float) -> Value:
        return self.b.zip("Sub", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return self.b.zip("Mul", self, other)

    def __rmul__(self, other: float) -> Value:
        return self.b.zip("Mul", other, self)

    def __truediv__(self, other: Value | float) -> Value:
        return self.b.divide(self, other)

    def __rtruediv__(self, other: float) -> Value:
        return self.b.divide(other, self)

    def __neg__(self) -> Value:
        return self.b.map("Neg", self)


class Builder:
    """Appends nodes to `block`; the lowering changes which that is."""

    def __init__(self) -> None:
        self.block = Block()
        self.region: object = None
        """The enclosing block of `block`: a value computed inside a loop or a branch is
        not visible outside.
        """
        self.collective: Callable[[Collective, Value], Value] | None = None
        """Ends the block and exchanges a value between replicas before the next."""
        self._constants: dict[tuple[str, Shape, bytes], Value] = {}

    def exchange(self, what: Collective, value: Value) -> Value:
        """Return a replica's part of `value` after a collective."""
        if self.collective is None:
            raise NotYet(f"gradients of gradients through {what.operator}")
        return self.collective(what, value)

    def node(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        results: Sequence[tuple[AnyDtype, Shape]],
        *,
        typed: Sequence[int] = (0,),
        **attributes: Any,
    ) -> list[Value]:
        """Append a node.

        `typed` are the inputs of the operator's main type. They, and results of that
        type, are widened if the kernel lacks it.
        """
        first = inputs[typed[0]] if typed else None
        if operator in _FRACTIONS and first is not None and first.dtype.kind != "f":
            raise IrError(
                f"{operator} needs floating-point numbers, found {first.dtype}: cast "
                "the tensor first"
            )
        wide = None if first is None else widened(operator, first.dtype)
        given = list(inputs)
        made = [(np.dtype(dtype), tuple(shape)) for dtype, shape in results]
        narrow = made
        if first is not None and wide is not None and wide != first.dtype:
            for index in typed:
                each = given[index]
                if each is not None:
                    given[index] = self.cast(each, wide)
            made = [(wide if d == first.dtype else d, s) for d, s in made]
        outputs = [Value(self, d, s, self.block) for d, s in made]
        self.block.nodes.append(Node(operator, given, outputs, attributes))
        return [
            self.cast(value, dtype)
            for value, (dtype, _) in zip(outputs, narrow, strict=True)
        ]

    def constant(
        self, array: npt.ArrayLike, dtype: npt.DTypeLike | None = None
    ) -> Value:
        """Return a constant; equal small ones are shared."""
        data = np.asarray(array, dtype)
        if not data.flags.c_contiguous:
            data = np.ascontiguousarray(data).reshape(data.shape)
        if data.nbytes > 1024:
            return Value(self, data.dtype, data.shape, array=data)
        key = (data.dtype.str, data.shape, data.tobytes())
        found = self._constants.get(key)
        if found is None:
            found = Value(self, data.dtype, data.shape, array=data)
            self._constants[key] = found
        return found

    def like(self, number: Value | float, value: Value) -> Value:
        """Return `number` as a constant of the type of `value`; -1 is the largest
        unsigned number. Raises IrError for a fraction of an integer.
        """
        if isinstance(number, Value):
            return number
        if value.dtype.kind in "iu":
            if not float(number).is_integer():
                raise IrError(
                    f"The factor or limit {number} does not fit {value.dtype}: cast "
                    "the tensor to floating-point numbers first"
                )
            return self.constant(np.array(int(number)).astype(value.dtype))
        return self.constant(number, value.dtype)

    def ints(self, numbers: Sequence[int]) -> Value:
        """Return a constant of 64-bit integers: shapes, axes."""
        return self.constant(np.array(numbers, np.int64).reshape(-1))

    def full(self, shape: Shape, dtype: npt.DTypeLike, number: float = 0) -> Value:
        """Return a tensor whose elements are all `number`."""
        return self.expand(self.constant(number, dtype), shape)

    def map(self, operator: str, value: Value, **attributes: Any) -> Value:
        """Return an elementwise operator of one input."""
        result = (value.dtype, value.shape)
        return self.node(operator, [value], [result], **attributes)[0]

    def zip(self, operator: str, left: Value | float, right: Value | float) -> Value:
        """Return an elementwise operator of two inputs of one type, broadcast."""
        a, b = self._pair(left, right)
        shape = np.broadcast_shapes(a.shape, b.shape)
        attributes = {"fmod": 1} if operator == "Mod" else {}
        result = [(a.dtype, shape)]
        return self.node(operator, [a, b], result, typed=(0, 1), **attributes)[0]

    def divide(self, left: Value | float, right: Value | float) -> Value:
        """Return a quotient, broadcast; those of integers are truncated."""
        a, b = self._pair(left, right)
        if a.dtype.name not in ("int32", "int64") or (
            b.array is not None and np.all(b.array != -1)
        ):
            return self.zip("Div", a, b)
        # The least integer divided by -1 would end the process with SIGFPE.
        is_minus = self.compare("Equal", b, -1)
        quotient = self.zip("Div", a, self.where(is_minus, 1, b))
        return self.where(is_minus, -a, quotient)

    def compare(
        self, operator: str, left: Value | float, right: Value | float
    ) -> Value:
        """Return a comparison, such as Equal or Less, as bool."""
        a, b = self._pair(left, right)
        shape = np.broadcast_shapes(a.shape, b.shape)
        return self.node(operator, [a, b], [(np.dtype(bool), shape)])[0]

    def _pair(self, left: Value | float, right: Value | float) -> tuple[Value, Value]:
        if isinstance(left, Value):
            return left, self.like(right, left)
        assert isinstance(right, Value)
        return self.like(left, right), right

    def cast(self, value: Value, dtype: npt.DTypeLike) -> Value:
        to = np.dtype(dtype)
        if value.dtype == to:
            return value
        if value.array is not None and value.size <= 16:
            return self.constant(value.array.astype(to))
        result = Value(self, to, value.shape, self.block)
        self.block.nodes.append(Node("Cast", [value], [result], {"to": to}))
        return result

    def identity(self, value: Value) -> Value:
        """Return another value with the same elements."""
        return self.map("Identity", value)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Return the elements in another shape, without -1."""
        to = tuple(shape)
        if to == value.shape:
            return value
        given = [value, self.ints(to)]
        return self.node("Reshape", given, [(value.dtype, to)], allowzero=1)[0]

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """Return the elements with the axes in another order."""
        if list(order) == list(range(len(value.shape))):
            return value
        shape = tuple(value.shape[axis] for axis in order)
        result = [(value.dtype, shape)]
        return self.node("Transpose", [value], result, perm=list(order))[0]

    def swap_last(self, value: Value) -> Value:
        """Return the last two axes exchanged."""
        rank = len(value.shape)
        return self.transpose(value, [*range(rank - 2), rank - 1, rank - 2])

    def expand(self, value: Value, shape: Sequence[int]) -> Value:
        """Return the elements broadcast to `shape`."""
        to = tuple(shape)
        if value.shape == to:
            return value
        given = [value, self.ints(to)]
        return self.node("Expand", given, [(value.dtype, to)])[0]

    def slice(
        self,
        value: Value,
        starts: Sequence[int],
        stops: Sequence[int],
        axes: Sequence[int],
        steps: Sequence[int],
    ) -> Value:
        """Return a slice; starts and stops as Python's `slice.indices` gives them."""
        shape = list(value.shape)
        for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
            shape[axis] = len(range(start, stop, step))
        # A stop of -1 means before the first element here, but the last element for
        # ONNX.
        ends = [stop if stop >= 0 else -(1 << 60) for stop in stops]
        given = [value, *map(self.ints, (starts, ends, axes, steps))]
        return self.node("Slice", given, [(value.dtype, tuple(shape))])[0]

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Return values joined along `axis`."""
        if len(values) == 1:
            return values[0]
        shape = list(values[0].shape)
        shape[axis] = sum(each.shape[axis] for each in values)
        result = [(values[0].dtype, tuple(shape))]
        return self.node("Concat", values, result, axis=axis)[0]

    def split(self, value: Value, sizes: Sequence[int], axis: int) -> list[Value]:
        """Return parts, cut along `axis`."""
        results = []
        for size in sizes:
            shape = list(value.shape)
            shape[axis] = size
            results.append((value.dtype, tuple(shape)))
        return self.node("Split", [value, self.ints(sizes)], results, axis=axis)

    def gather(self, value: Value, indices: Value, axis: int) -> Value:
        """Return numpy's take; the indices must be in range."""
        shape = (*value.shape[:axis], *indices.shape, *value.shape[axis + 1 :])
        at = self.indices(indices)
        return self.node("Gather", [value, at], [(value.dtype, shape)], axis=axis)[0]

    def indices(self, value: Value) -> Value:
        """Return `value` as a type that ONNX accepts for indices."""
        return value if value.dtype.name in ("int32", "int64") else self.cast(
            value, np.int64
        )  # fmt: skip

    def gather_elements(self, value: Value, indices: Value, axis: int) -> Value:
        """Return numpy's take_along_axis."""
        given = [value, self.indices(indices)]
        result = [(value.dtype, indices.shape)]
        return self.node("GatherElements", given, result, axis=axis)[0]

    def scatter_elements(
        self,
        value: Value,
        indices: Value,
        updates: Value,
        axis: int,
        reduction: str = "none",
    ) -> Value:
        """Return `value` with `updates` at `indices`: set, added, or as minimum or
        maximum.
        """
        if reduction == "add" and value.dtype == np.float16:
            # ONNX Runtime adds no float16 here.
            wide = self.cast(value, np.float32), self.cast(updates, np.float32)
            summed = self.scatter_elements(wide[0], indices, wide[1], axis, reduction)
            return self.cast(summed, value.dtype)
        given = [value, self.indices(indices), updates]
        result = [(value.dtype, value.shape)]
        return self.node(
            "ScatterElements", given, result, axis=axis, reduction=reduction
        )[0]

    def reduce(
        self, operator: str, value: Value, axes: Sequence[int], keep: bool = False
    ) -> Value:
        """Return a reduction over `axes`."""
        if not axes:
            # ONNX reduces over all axes if none are given. To reduce over none, reduce
            # over an added axis of length one.
            unit = self.reshape(value, (*value.shape, 1))
            return self.reduce(operator, unit, [len(value.shape)])
        shape = tuple(
            1 if axis in axes else size
            for axis, size in enumerate(value.shape)
            if keep or axis not in axes
        )
        given = [value, self.ints(sorted(axes))]
        result = [(value.dtype, shape)]
        return self.node(operator, given, result, keepdims=int(keep))[0]

    def sum(self, value: Value, axes: Sequence[int], keep: bool = False) -> Value:
        return self.reduce("ReduceSum", value, axes, keep)

    def sum_to(self, value: Value, shape: Shape) -> Value:
        """Return the sum over the axes along which `shape` was broadcast to the value's
        shape.
        """
        if value.shape == shape:
            return value
        extra = len(value.shape) - len(shape)
        axes = list(range(extra))
        for axis, size in enumerate(shape):
            if size == 1 and value.shape[axis + extra] != 1:
                axes.append(axis + extra)
        summed = self.sum(value, axes) if axes else value
        return self.reshape(summed, shape)

    def matmul(self, left: Value, right: Value) -> Value:
        """Return numpy's matmul."""
        a = (1, *left.shape) if len(left.shape) == 1 else left.shape
        b = (*right.shape, 1) if len(right.shape) == 1 else right.shape
        shape = [*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1]]
        if len(right.shape) == 1:
            del shape[-1]
        if len(left.shape) == 1:
            del shape[len(shape) - (0 if len(right.shape) == 1 else 1) - 1]
        result = [(left.dtype, tuple(shape))]
        return self.node("MatMul", [left, right], result, typed=(0, 1))[0]

    def where(
        self, condition: Value, left: Value | float, right: Value | float
    ) -> Value:
        """Return `left` if `condition` holds, else `right`, element by element."""
        a, b = self._pair(left, right)
        shape = np.broadcast_shapes(condition.shape, a.shape, b.shape)
        given = [condition, a, b]
        return self.node("Where", given, [(a.dtype, shape)], typed=(1, 2))[0]

    def one_hot(self, indices: Value, classes: int) -> Value:
        """Return as bool a row for each index, which is True at that index."""
        numbers = self.constant(np.arange(classes), indices.dtype)
        column = self.reshape(indices, (*indices.shape, 1))
        return self.compare("Equal", column, numbers)
