"""Elementwise operators of several inputs, and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from popir.builder import Builder, Value
from popir.dtypes import BOOL, FLOAT16, FLOAT32
from popir.errors import IrError
from popir.ops.common import broadcast, broadcast_shapes, factor, rule, rules, widened
from popir.records import Grad, GradRule, OpCall, Record, Spec, makes, register

_Partial = Callable[[Grad], Value]


def _infer(call: OpCall) -> list[Spec]:
    left, right = call.inputs
    if BOOL in (left.dtype, right.dtype):
        raise IrError("arithmetic takes numbers, not bool; cast it first")
    meta = left.meta_shape or right.meta_shape
    return [Spec(left.dtype, broadcast(left, right), meta)]


def _infer_mul(call: OpCall) -> list[Spec]:
    left, right = call.inputs
    for scalar, other in ((left, right), (right, left)):
        # A float32 number may scale float16: the result is float16.
        if (scalar.dtype, other.dtype) == (FLOAT32, FLOAT16) and (
            np.prod(scalar.shape) == 1
        ):
            shape = broadcast_shapes([left.shape, right.shape])
            return [Spec(FLOAT16, shape, other.meta_shape)]
    return _infer(call)


def _mul(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    left, right = values
    if left.dtype == right.dtype:
        return [left * right]
    wide = b.cast(left, np.float32) * b.cast(right, np.float32)
    return [b.cast(wide, np.float16)]


def _argument(type_: str, index: int, partial: _Partial) -> GradRule:
    def lower(g: Grad) -> Value:
        into = g.call.inputs[index]
        value = g.b.sum_to(partial(g), into.shape)
        return g.b.cast(value, into.dtype.carrier)

    return rule(f"{type_}Arg{index}Grad", "g0 i0 i1 o0", index, lower)


def _binary(type_: str, operator: str, left: _Partial, right: _Partial | None) -> None:
    made = [_argument(type_, 0, left)]
    if right is not None:
        made.append(_argument(type_, 1, right))
    register(
        Record(
            type_,
            _infer,
            lambda b, _, values: [
                b.divide(*values) if operator == "Div" else b.zip(operator, *values)
            ],
            rules(*made),
        )
    )


def _up(g: Grad, name: str) -> Value:
    """Return an input in the type of the gradient, because a product may have scaled
    float16.
    """
    return g.b.cast(g[name], g["g0"].dtype)


def _power_left(g: Grad) -> Value:
    x, e = g["i0"], g["i1"]
    return g["g0"] * e * g.b.zip("Pow", x, e - 1.0)


def _power_right(g: Grad) -> Value:
    # The derivative of 0^e by a positive e is 0.
    x = g["i0"]
    is_zero = g.b.compare("Equal", x, 0)
    return g["g0"] * g["o0"] * g.b.map("Log", g.b.where(is_zero, 1, x))


_binary("Add", "Add", lambda g: g["g0"], lambda g: g["g0"])
_binary("Sub", "Sub", lambda g: g["g0"], lambda g: -g["g0"])
_binary(
    "Div",
    "Div",
    lambda g: g["g0"] / g["i1"],
    lambda g: -(g["g0"] * g["i0"] / (g["i1"] * g["i1"])),
)
_binary("Fmod", "Mod", lambda g: g["g0"], None)
_binary("Pow", "Pow", _power_left, _power_right)
register(
    Record(
        "Mul",
        _infer_mul,
        _mul,
        rules(
            _argument("Mul", 0, lambda g: g["g0"] * _up(g, "i1")),
            _argument("Mul", 1, lambda g: g["g0"] * _up(g, "i0")),
        ),
    )
)


def _infer_add_in_place(call: OpCall) -> list[Spec]:
    (result,) = _infer(call)
    if result.shape != call.inputs[0].shape:
        raise IrError(
            f"the sum has shape {list(result.shape)}, which does not fit in place into "
            f"{list(call.inputs[0].shape)}"
        )
    return [result]


register(
    Record(
        "AddLhsInplace",
        _infer_add_in_place,
        lambda b, _, values: [values[0] + values[1]],
        writes=True,
    )
)


def _infer_many(call: OpCall) -> list[Spec]:
    first = call.inputs[0]
    return [Spec(first.dtype, broadcast(*call.inputs), first.meta_shape)]


def _each(
    type_: str, needs: str, partial: Callable[[Grad, str], Value]
) -> Callable[[OpCall], Sequence[GradRule]]:
    """Return a rule for each of any number of inputs."""

    @makes(type_)
    def made(call: OpCall) -> list[GradRule]:
        return [
            rule(
                type_,
                needs.replace("i", f"i{n}"),
                n,
                lambda g, n=n: g.b.sum_to(  # type: ignore[misc]
                    partial(g, f"i{n}"), g.shape(n)
                ),
            )
            for n in range(len(call.inputs))
        ]

    return made


def _largest(g: Grad, name: str) -> Value:
    return g.b.where(g.b.compare("Equal", g[name], g["o0"]), g["g0"], 0)


register(
    Record(
        "Max",
        _infer_many,
        lambda b, _, values: [reduce(lambda x, y: b.zip("Max", x, y), values)],
        _each("MaxArgGrad", "g0 i o0", _largest),
    )
)
register(
    Record(
        "Sum",
        _infer_many,
        lambda _, __, values: [reduce(lambda x, y: x + y, values)],
        _each("SumArgGrad", "g0", lambda g, _: g["g0"]),
    )
)


def _comparison(type_: str, operator: str) -> None:
    def infer(call: OpCall) -> list[Spec]:
        return [Spec(BOOL, broadcast(*call.inputs))]

    def lower(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
        result = [(BOOL.numpy, call.outputs[0].shape)]
        return b.node(operator, values, result)

    register(Record(type_, infer, lower))


_comparison("Equal", "Equal")
_comparison("Greater", "Greater")
_comparison("And", "And")
_comparison("Or", "Or")


def _infer_where(call: OpCall) -> list[Spec]:
    _, left, right = call.inputs
    broadcast(left, right)
    shape = broadcast_shapes([each.shape for each in call.inputs])
    return [Spec(left.dtype, shape)]


def _chosen(index: int) -> GradRule:
    def lower(g: Grad) -> Value:
        b, zero = g.b, g["g0"] * 0.0
        pair = (g["g0"], zero) if index == 1 else (zero, g["g0"])
        return b.sum_to(b.where(g["i0"], *pair), g.shape(index))

    return rule(f"Where{'XY'[index - 1]}Grad", "g0 i0", index, lower)


register(
    Record(
        "Where",
        _infer_where,
        lambda b, _, values: [b.where(*values)],
        rules(_chosen(1), _chosen(2)),
    )
)


def _scaled_add(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    x = widened(b, values[0])
    y = b.cast(values[1], x.dtype)
    if call["a"] != 1.0:
        x = x * factor(b, call, values, "a", x)
    if call["b"] != 1.0:
        y = y * factor(b, call, values, "b", y)
    return [b.cast(x + y, values[0].dtype)]


def _infer_scaled_add(call: OpCall) -> list[Spec]:
    x, y = call.inputs[:2]
    if x.shape != y.shape:
        raise IrError(
            f"scaled_add needs one shape, found {list(x.shape)} and {list(y.shape)}"
        )
    return [x]


register(Record("ScaledAdd", _infer_scaled_add, _scaled_add))
register(Record("ScaledAddLhsInplace", _infer_scaled_add, _scaled_add, writes=True))


def infer_matmul(call: OpCall) -> list[Spec]:
    left, right = call.inputs
    if not left.shape or not right.shape:
        raise IrError("matmul does not take scalars")
    if left.dtype is not right.dtype:
        raise IrError(
            f"matmul needs one type, incompatible types {left.dtype} and {right.dtype}"
        )
    inner = right.shape[-2] if len(right.shape) > 1 else right.shape[0]
    if left.shape[-1] != inner:
        raise IrError(
            f"matmul of {list(left.shape)} and {list(right.shape)}: the inner "
            f"dimensions {left.shape[-1]} and {inner} differ"
        )
    rows = left.shape[-2:-1]
    columns = right.shape[-1:] if len(right.shape) > 1 else ()
    batch = broadcast_shapes([left.shape[:-2], right.shape[:-2]])
    return [Spec(call["output_type"] or left.dtype, (*batch, *rows, *columns))]


def _matmul(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    product = b.matmul(*values)
    return [b.cast(product, call.outputs[0].dtype.carrier)]


def _matrices(g: Grad) -> tuple[Value, Value, Value]:
    """Return gradient and inputs with at least two dimensions, in the type of the
    inputs.
    """
    b, left, right = g.b, g["i0"], g["i1"]
    dy = b.cast(g["g0"], left.dtype)
    if len(right.shape) == 1:
        dy = b.reshape(dy, (*dy.shape, 1))
        right = b.reshape(right, (*right.shape, 1))
    if len(left.shape) == 1:
        dy = b.reshape(dy, (*dy.shape[:-1], 1, dy.shape[-1]))
        left = b.reshape(left, (1, *left.shape))
    return dy, left, right


def _matmul_left(g: Grad) -> Value:
    dy, left, right = _matrices(g)
    product = g.b.matmul(dy, g.b.swap_last(right))
    return g.b.reshape(g.b.sum_to(product, left.shape), g.shape(0))


def _matmul_right(g: Grad) -> Value:
    dy, left, right = _matrices(g)
    if len(right.shape) == 2 and len(left.shape) > 2:
        # One matrix for all batches: their rows are those of one larger product.
        left = g.b.reshape(left, (-(-left.size // left.shape[-1]), left.shape[-1]))
        dy = g.b.reshape(dy, (left.shape[0], dy.shape[-1]))
    product = g.b.matmul(g.b.swap_last(left), dy)
    return g.b.reshape(g.b.sum_to(product, right.shape), g.shape(1))


register(
    Record(
        "MatMul",
        infer_matmul,
        _matmul,
        rules(
            rule("MatMulLhsGrad", "g0 i0 i1", 0, _matmul_left),
            rule("MatMulRhsGrad", "g0 i0 i1", 1, _matmul_right),
        ),
    )
)
