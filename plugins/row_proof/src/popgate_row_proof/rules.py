"""Rules for the rows of arithmetic operators.

If an operator has no rule here, in `shape_rules` or in `ml_rules`, there is no proof
that it keeps rows apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.errors import counted
from popgate_row_proof.call import OperatorCall, Rule, across, from_front
from popgate_row_proof.values import (
    AbstractValue,
    RowCounts,
    Rows,
    Shape,
    Unproven,
    broadcast,
    unknown,
)

_WHOLE_TYPES = (6, 7)
"""INT32 and INT64 of TensorProto.DataType: casts to these keep sizes."""


def same(call: OperatorCall) -> Iterable[AbstractValue]:
    """Apply an operator element by element. Other inputs are settings."""
    return [AbstractValue(call.only().shape)]


def together(call: OperatorCall) -> Iterable[AbstractValue]:
    """Apply an operator element by element to all inputs, repeating single elements."""
    return [AbstractValue(broadcast([v.shape for v in call.values], call.counts))]


def identity(call: OperatorCall) -> Iterable[AbstractValue]:
    return [call.input()]


def cast(call: OperatorCall) -> Iterable[AbstractValue]:
    value = call.input()
    if call.node.op_type == "Cast" and call.number("to", 0) in _WHOLE_TYPES:
        return [value]
    return [AbstractValue(value.shape)]


def along(call: OperatorCall) -> Iterable[AbstractValue]:
    """Return the result of an operator that combines all values along one axis and
    keeps its length.
    """
    value, old = call.only(), call.opset < 13
    if call.node.op_type == "CumSum":
        (axis,) = call.constants(1)
        across(value, [from_front(axis, len(value.shape))])
    elif call.node.op_type == "LpNormalization":
        across(value, [call.axis(-1)])
    elif old:  # ONNX joins all axes behind this one
        across(value, range(call.axis(1), len(value.shape)))
    else:
        across(value, [call.axis(-1)])
    return [AbstractValue(value.shape)]


def layer(call: OperatorCall) -> Iterable[AbstractValue]:
    """Return the result of an operator that combines all axes from one on."""
    value = call.only()
    across(value, range(call.axis(-1), len(value.shape)))
    return [AbstractValue(value.shape)]


def reduction(call: OperatorCall) -> Iterable[AbstractValue]:
    value = call.only()
    rank = len(value.shape)
    if call.node.op_type in ("ArgMax", "ArgMin"):
        axes = {call.axis(0)}
    else:
        given = call.numbers("axes", 1)
        if not given and call.number("noop_with_empty_axes", 0):
            return [AbstractValue(value.shape)]
        axes = {from_front(axis, rank) for axis in given or range(rank)}
    across(value, axes)
    keep = call.number("keepdims", 1)
    shape = [1 if i in axes else d for i, d in enumerate(value.shape)]
    return [
        AbstractValue(tuple(d for i, d in enumerate(shape) if keep or i not in axes))
    ]


def top(call: OperatorCall) -> Iterable[AbstractValue]:
    value = call.only()
    axis = call.axis(-1)
    across(value, [axis])
    items = call.input(1).items if call.has(1) else (call.number("k", 0),)
    size = items[0] if items else unknown()
    result = AbstractValue((*value.shape[:axis], size, *value.shape[axis + 1 :]))
    return [result, result]


def matrix(call: OperatorCall) -> Iterable[AbstractValue]:
    return [
        AbstractValue(product(call.input(0).shape, call.input(1).shape, call.counts))
    ]


def product(one: Shape, other: Shape, counts: RowCounts) -> Shape:
    """Return the shape of a matrix product."""
    if not one or not other:
        raise Unproven("multiplies a scalar")
    if isinstance(one[-1], Rows) or isinstance(other[max(-2, -len(other))], Rows):
        raise Unproven("combines values along the axis of rows")
    batch = broadcast([one[:-2], other[:-2]], counts)
    return (*batch, *one[-2:-1], *(other[-1:] if len(other) > 1 else ()))


def gemm(call: OperatorCall) -> Iterable[AbstractValue]:
    one, other = call.input(0).shape, call.input(1).shape
    if len(one) != 2 or len(other) != 2:
        raise Unproven("multiplies values that are not matrices")
    one = one[::-1] if call.number("transA", 0) else one
    other = other[::-1] if call.number("transB", 0) else other
    result = product(one, other, call.counts)
    if call.has(2):
        result = broadcast([result, call.input(2).shape], call.counts)
    return [AbstractValue(result)]


def neighbourhood(call: OperatorCall) -> Iterable[AbstractValue]:
    """Return rows along the first axis, channels along the second, and places along the
    others.
    """
    value, kind = call.leading(), call.node.op_type
    rank = len(value.shape)
    if rank < 2:
        raise Unproven(f"reads {counted(rank, 'dimension')}, expected at least 2")
    channels, places = value.shape[1], value.shape[2:]
    if kind == "Conv":
        channels = call.input(1).shape[0]
    elif kind == "ConvTranspose":
        channels = unknown()
    if kind.startswith("Global"):
        places = (1,) * (rank - 2)
    elif "Pool" in kind or "Conv" in kind:
        places = tuple(unknown() for _ in places)
    return [AbstractValue((value.shape[0], channels, *places))]


def recurrent(call: OperatorCall) -> Iterable[AbstractValue]:
    """Return the values of recurrent operators: steps along the first axis, rows along
    the second.
    """
    value = call.input()
    if call.number("layout", 0) or value.axis != 1 or len(value.shape) != 3:
        raise Unproven("reads rows that do not lie along the second axis")
    wanted = {0: 1, 4: 0, 5: 1, 6: 1}
    for index, other in enumerate(call.given):
        axis = None if other is None else other.axis
        if axis is not None and axis != wanted.get(index):
            raise Unproven(f"reads rows as its input {index}")
    steps, rows, _ = value.shape
    direction = call.attribute("direction")
    both = direction is not None and direction.s == b"bidirectional"
    hidden = call.number("hidden_size", 0) or unknown()
    last = AbstractValue((1 + both, rows, hidden))
    return [AbstractValue((steps, *last.shape)), last, last]


def _each(rule: Rule, operators: str) -> dict[str, Rule]:
    return dict.fromkeys(operators.split(), rule)


CALCULATING: Mapping[str, Rule] = {
    **_each(identity, "Identity"),
    **_each(cast, "Cast CastLike"),
    **_each(
        same,
        "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Clip Cos Cosh "
        "Dropout Elu Erf Exp Floor Gelu HardSigmoid HardSwish IsInf IsNaN LeakyRelu "
        "Log Mish Neg Not Reciprocal RegexFullMatch Relu Round Selu Shrink Sigmoid "
        "Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu",
    ),
    **_each(
        together,
        "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater "
        "GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or PRelu Pow "
        "StringConcat Sub Sum Where Xor",
    ),
    **_each(along, "CumSum Hardmax LogSoftmax LpNormalization Softmax"),
    **_each(layer, "LayerNormalization RMSNormalization"),
    **_each(
        reduction,
        "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax "
        "ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare",
    ),
    **_each(top, "TopK"),
    **_each(matrix, "MatMul"),
    **_each(gemm, "Gemm"),
    **_each(
        neighbourhood,
        "AveragePool BatchNormalization Conv ConvTranspose GlobalAveragePool "
        "GlobalLpPool GlobalMaxPool InstanceNormalization LRN LpPool MaxPool",
    ),
    **_each(recurrent, "GRU LSTM RNN"),
}
