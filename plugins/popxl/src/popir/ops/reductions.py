"""Reductions and order: sums, extremes, medians, sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from popir.builder import Builder, Value
from popir.dtypes import FLOAT32, INT32, UINT32, Shape
from popir.errors import IrError
from popir.ops.common import axis_of, rule, rules, widened
from popir.records import Grad, OpCall, Record, Spec, register


def axes_of(call: OpCall) -> list[int]:
    """Return the axes of a reduction, counted from the front; all if none are given."""
    rank = len(call.inputs[0].shape)
    given = call["axes"]
    if given is None:
        return list(range(rank))
    return sorted({axis_of(axis, rank) for axis in given}) if rank else []


def _reduced(call: OpCall) -> Shape:
    axes = axes_of(call)
    return tuple(
        1 if axis in axes else size
        for axis, size in enumerate(call.inputs[0].shape)
        if call["keepdims"] or axis not in axes
    )


def _infer(call: OpCall) -> list[Spec]:
    return [Spec(call.inputs[0].dtype, _reduced(call))]


def _kept(g: Grad, value: Value) -> Value:
    """Return a reduced value with ones as reduced axes, so that it broadcasts."""
    axes = axes_of(g.call)
    shape = [1 if a in axes else n for a, n in enumerate(g.shape(0))]
    return g.b.reshape(value, shape)


def _prod_grad(g: Grad) -> Value:
    """Return products of the others, which are right even if elements are 0."""
    b, x, axes = g.b, g["i0"], axes_of(g.call)
    is_zero = b.compare("Equal", x, 0)
    others = b.where(is_zero, 1, x)
    product = b.reduce("ReduceProd", others, axes, keep=True)
    zeros = b.sum(b.cast(is_zero, x.dtype), axes, keep=True)
    none = b.cast(b.compare("Equal", zeros, 0), x.dtype)
    one = b.cast(b.compare("Equal", zeros, 1), x.dtype)
    dy = _kept(g, g["g0"])
    return dy * product * b.where(is_zero, one * (others * 0.0 + 1.0), none / others)


def _extreme_grad(g: Grad) -> Value:
    hit = g.b.compare("Equal", g["i0"], _kept(g, g["o0"]))
    return g.b.where(hit, _kept(g, g["g0"]), 0)


def _logsumexp_grad(g: Grad) -> Value:
    total = g.b.reduce("ReduceLogSumExp", g["i0"], axes_of(g.call), keep=True)
    return _kept(g, g["g0"]) * g.b.map("Exp", g["i0"] - total)


def _l2_grad(g: Grad) -> Value:
    norm = g.b.reduce("ReduceL2", g["i0"], axes_of(g.call), keep=True)
    return _kept(g, g["g0"]) * g["i0"] / norm


def _mean_grad(g: Grad) -> Value:
    count = math.prod(g.shape(0)[axis] for axis in axes_of(g.call))
    # Divide in float32: float16 has no number above 65504.
    share = widened(g.b, _kept(g, g["g0"])) / max(count, 1)
    return g.b.expand(g.b.cast(share, g["g0"].dtype), g.shape(0))


def _spread(g: Grad) -> Value:
    return g.b.expand(_kept(g, g["g0"]), g.shape(0))


def _logsum_grad(g: Grad) -> Value:
    total = g.b.sum(g["i0"], axes_of(g.call), keep=True)
    return g.b.expand(_kept(g, g["g0"]) / total, g.shape(0))


_REDUCTIONS: dict[str, tuple[Callable[[Grad], Value], str]] = {
    "Sum": (_spread, "g0 i0"),
    "Mean": (_mean_grad, "g0 i0"),
    "Max": (_extreme_grad, "g0 i0 o0"),
    "Min": (_extreme_grad, "g0 i0 o0"),
    "Prod": (_prod_grad, "g0 i0"),
    "L1": (lambda g: _kept(g, g["g0"]) * g.b.map("Sign", g["i0"]), "g0 i0"),
    "L2": (_l2_grad, "g0 i0"),
    "LogSum": (_logsum_grad, "g0 i0"),
    "LogSumExp": (_logsumexp_grad, "g0 i0"),
    "SumSquare": (lambda g: _kept(g, g["g0"]) * g["i0"] * 2.0, "g0 i0"),
}


def _reduction(name: str, grad: Callable[[Grad], Value], needs: str) -> None:
    def lower(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
        axes = axes_of(call)
        return [b.reduce(f"Reduce{name}", values[0], axes, call["keepdims"])]

    made = rules(rule(f"Reduce{name}Grad", needs, 0, grad))
    register(Record(f"Reduce{name}", _infer, lower, made))


for _name, (_grad, _needs) in _REDUCTIONS.items():
    _reduction(_name, _grad, _needs)


def _infer_median(call: OpCall) -> list[Spec]:
    shape = _reduced(call)
    return [Spec(call.inputs[0].dtype, shape), Spec(INT32, shape)]


def _last(b: Builder, value: Value, axes: Sequence[int]) -> Value:
    """Return the axes `axes` moved to the end and merged."""
    rest = [axis for axis in range(len(value.shape)) if axis not in axes]
    moved = b.transpose(value, [*rest, *axes])
    kept = [value.shape[axis] for axis in rest]
    return b.reshape(moved, [*kept, math.prod(value.shape[axis] for axis in axes)])


def _top(
    b: Builder, value: Value, k: int, axis: int, largest: bool, in_order: bool
) -> list[Value]:
    shape = list(value.shape)
    shape[axis] = k
    results = [(value.dtype, tuple(shape)), (np.dtype(np.int64), tuple(shape))]
    values, indices = b.node(
        "TopK",
        [value, b.ints([k])],
        results,
        axis=axis,
        largest=int(largest),
        sorted=int(in_order),
    )
    return [values, b.cast(indices, np.int32)]


def _median(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    flat = _last(b, values[0], axes_of(call))
    axis = len(flat.shape) - 1
    middle = (flat.shape[axis] - 1) // 2
    found = _top(b, flat, middle + 1, axis, largest=False, in_order=True)
    shape = call.outputs[0].shape
    picked = [b.slice(v, [middle], [middle + 1], [axis], [1]) for v in found]
    return [b.reshape(value, shape) for value in picked]


def _median_grad(g: Grad) -> Value:
    b, axes = g.b, axes_of(g.call)
    rest = [axis for axis in range(len(g.shape(0))) if axis not in axes]
    kept = [g.shape(0)[axis] for axis in rest]
    count = math.prod(g.shape(0)[axis] for axis in axes)
    hot = b.one_hot(b.reshape(g["o1"], kept), count)
    dy = b.reshape(g["g0"], [*kept, 1])
    spread = b.where(hot, dy, 0)
    moved = b.reshape(spread, [*kept, *(g.shape(0)[axis] for axis in axes)])
    order = [*rest, *axes]
    return b.transpose(moved, [order.index(axis) for axis in range(len(order))])


register(
    Record(
        "ReduceMedian",
        _infer_median,
        _median,
        rules(rule("ReduceMedianGrad", "g0 o1", 0, _median_grad)),
    )
)


def _best(operator: str) -> None:
    def infer(call: OpCall) -> list[Spec]:
        shape = list(call.inputs[0].shape)
        axis = axis_of(call["dim"], len(shape))
        if shape:
            shape[axis : axis + 1] = [1] if call["keepdim"] else []
        return [Spec(INT32, tuple(shape))]

    def lower(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
        axis = axis_of(call["dim"], len(call.inputs[0].shape))
        result = [(np.dtype(np.int64), call.outputs[0].shape)]
        keep = int(call["keepdim"])
        (found,) = b.node(operator, values, result, axis=axis, keepdims=keep)
        return [b.cast(found, np.int32)]

    register(Record(operator, infer, lower))


_best("ArgMax")
_best("ArgMin")


def _infer_top(call: OpCall) -> list[Spec]:
    (spec,) = call.inputs
    axis = axis_of(call["axis"], len(spec.shape))
    if not 0 <= call["k"] <= spec.shape[axis]:
        raise IrError(f"k is {call['k']}, but the axis has {spec.shape[axis]} elements")
    shape = list(spec.shape)
    shape[axis] = call["k"]
    return [Spec(spec.dtype, tuple(shape)), Spec(INT32, tuple(shape))]


def _topk(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    axis = axis_of(call["axis"], len(call.inputs[0].shape))
    return _top(b, values[0], call["k"], axis, call["largest"], call["sorted"])


def _topk_grad(g: Grad) -> Value:
    axis = axis_of(g.call["axis"], len(g.shape(0)))
    zero = g.b.full(g.shape(0), g["g0"].dtype)
    return g.b.scatter_elements(zero, g["o1"], g["g0"], axis)


register(
    Record("TopK", _infer_top, _topk, rules(rule("TopKGrad", "g0 o1", 0, _topk_grad)))
)


def _cumulate(b: Builder, value: Value, axis: int, reverse: bool = False) -> Value:
    given = [value, b.constant(np.int64(axis))]
    result = [(value.dtype, value.shape)]
    return b.node("CumSum", given, result, reverse=int(reverse))[0]


def _axis(call: OpCall) -> int:
    return axis_of(call["dim"], len(call.inputs[0].shape))


register(
    Record(
        "CumSum",
        lambda call: [call.inputs[0]],
        lambda b, call, values: [_cumulate(b, values[0], _axis(call))],
        rules(
            rule(
                "CumSumGrad",
                "g0",
                0,
                lambda g: _cumulate(g.b, g["g0"], _axis(g.call), reverse=True),
            )
        ),
    )
)


def _histogram(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    x = b.map("Abs", values[0]) if call["absolute"] else values[0]
    column = b.reshape(x, (x.size, 1))
    levels = b.constant(np.array(call["levels"], x.dtype))
    below = b.compare("Less", column, levels)
    counts = b.sum(b.cast(below, np.int64), [0])
    zero, every = b.ints([0]), b.ints([x.size])
    before = b.concat([zero, counts], 0)
    until = b.concat([counts, every], 0)
    return [b.cast(until - before, np.uint32)]


register(
    Record(
        "Histogram", lambda call: [Spec(UINT32, (len(call["levels"]) + 1,))], _histogram
    )
)
register(
    Record(
        "LambSquare",
        lambda _: [Spec(FLOAT32, ())],
        lambda b, _, values: [
            b.reduce(
                "ReduceSumSquare",
                b.cast(values[0], np.float32),
                list(range(len(values[0].shape))),
            )
        ],
    )
)
