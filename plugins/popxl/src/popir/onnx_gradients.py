"""Gradients of gradient operators, through the ONNX nodes of their rules.

Records know the gradients of forward operators. A gradient operator has none of its
own: its nodes are written again, and each passes gradients to its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import pi, sqrt
from typing import TypeAlias

import numpy as np

from popir.builder import Builder, Node, Value
from popir.errors import NotYet

Passed: TypeAlias = Sequence[tuple[Value, Value]]
"""The arguments of a node's inputs: input and gradient."""
_Rule: TypeAlias = Callable[[Builder, Node, Value], Passed]


def pass_back(
    b: Builder,
    nodes: Sequence[Node],
    wanted: Iterable[Value],
    arriving: Mapping[Value, Value],
) -> dict[Value, Value]:
    """Return the gradients of `wanted` and of the values that `nodes` compute from it,
    given the gradients of some results.

    Raises NotYet for an unknown node.
    """
    found, depending, used = dict(arriving), set(wanted), []
    for node in nodes:
        if node.operator not in _STOPS and not depending.isdisjoint(_inputs(node)):
            depending.update(node.outputs)
            used.append(node)
    for node in reversed(used):
        if found.keys().isdisjoint(node.outputs):
            continue
        rule = _RULES.get(node.operator)
        several = len(node.outputs) > 1 and node.operator != "Split"
        if rule is None or several:
            raise NotYet(f"gradients of gradients through {node.operator}")
        parts = [found.get(each) or zero(b, each) for each in node.outputs]
        gradient = parts[0] if len(parts) == 1 else b.concat(parts, _axis(node))
        for value, given in rule(b, node, gradient):
            if value not in depending or value.dtype.kind != "f":
                continue
            whole = b.cast(b.sum_to(given, value.shape), value.dtype)
            found[value] = found[value] + whole if value in found else whole
    return found


def _axis(node: Node) -> int:
    """Return the axis that the node works along."""
    axis: int = node.attributes.get("axis", 0)
    return axis


def _inputs(node: Node) -> list[Value]:
    return [value for value in node.inputs if value is not None]


def _one(partial: Callable[[Builder, Value, Value], Value]) -> _Rule:
    """Make a rule for one input: its slope, by the input and the result."""

    def rule(b: Builder, node: Node, dy: Value) -> Passed:
        (x,) = _inputs(node)
        return [(x, dy * partial(b, x, node.outputs[0]))]

    return rule


def _add(b: Builder, node: Node, dy: Value) -> Passed:
    return [(value, dy) for value in _inputs(node)]


def _sub(b: Builder, node: Node, dy: Value) -> Passed:
    left, right = _inputs(node)
    return [(left, dy), (right, -dy)]


def _mul(b: Builder, node: Node, dy: Value) -> Passed:
    left, right = _inputs(node)
    return [(left, dy * right), (right, dy * left)]


def _div(b: Builder, node: Node, dy: Value) -> Passed:
    left, right = _inputs(node)
    return [(left, dy / right), (right, -(dy * left / (right * right)))]


def _pow(b: Builder, node: Node, dy: Value) -> Passed:
    x, e = _inputs(node)
    is_zero = b.compare("Equal", x, 0)
    log = b.map("Log", b.where(is_zero, 1, x))
    return [(x, dy * e * b.zip("Pow", x, e - 1.0)), (e, dy * node.outputs[0] * log)]


def _where(b: Builder, node: Node, dy: Value) -> Passed:
    condition, left, right = _inputs(node)
    return [(left, b.where(condition, dy, 0)), (right, b.where(condition, 0.0, dy))]


def _chosen(b: Builder, node: Node, dy: Value) -> Passed:
    return [
        (value, b.where(b.compare("Equal", value, node.outputs[0]), dy, 0))
        for value in _inputs(node)
    ]


def _reshaped(b: Builder, node: Node, dy: Value) -> Passed:
    value = _inputs(node)[0]
    return [(value, b.reshape(dy, value.shape))]


def _same(b: Builder, node: Node, dy: Value) -> Passed:
    """Pass the gradient of Cast, Identity and Expand; the sum is taken in any case."""
    return [(_inputs(node)[0], dy)]


def _transposed(b: Builder, node: Node, dy: Value) -> Passed:
    order = node.attributes["perm"]
    back = [order.index(axis) for axis in range(len(order))]
    return [(_inputs(node)[0], b.transpose(dy, back))]


def _summed(b: Builder, node: Node, dy: Value) -> Passed:
    value, axes = _inputs(node)
    return [(value, _spread(b, dy, value, axes))]


def _spread(b: Builder, value: Value, like: Value, axes: Value) -> Value:
    """Return the result of a reduction in the size of its input."""
    assert axes.array is not None
    dropped = {int(axis) for axis in axes.array}
    kept = tuple(1 if n in dropped else size for n, size in enumerate(like.shape))
    return b.expand(b.reshape(value, kept), like.shape)


def _reduced(share: Callable[[Builder, Value, Value], Value]) -> _Rule:
    """Make a rule for a reduction: the share of each element, by it and the result."""

    def rule(b: Builder, node: Node, dy: Value) -> Passed:
        value, axes = _inputs(node)
        made = _spread(b, node.outputs[0], value, axes)
        return [(value, _spread(b, dy, value, axes) * share(b, value, made))]

    return rule


def _mean(b: Builder, node: Node, dy: Value) -> Passed:
    value, axes = _inputs(node)
    count = max(value.size, 1) // max(node.outputs[0].size, 1)
    return [(value, _spread(b, dy, value, axes) / float(count))]


def _sliced(b: Builder, node: Node, dy: Value) -> Passed:
    """Return zeros, with the gradient in the place of the slice."""
    value, *given = _inputs(node)
    numbers = [each.array for each in given]
    for start, stop, axis, step in zip(
        *(n for n in numbers if n is not None), strict=True
    ):
        length = value.shape[axis]
        taken = list(range(length))[int(start) : int(stop) : int(step)]
        rest = tuple(1 if n == axis else size for n, size in enumerate(dy.shape))
        empty = b.full(rest, dy.dtype)
        places = np.full(length, len(taken), np.int64)  # there is nothing
        places[taken] = np.arange(len(taken))
        dy = b.gather(b.concat([dy, empty], axis), b.constant(places), axis)
    return [(value, dy)]


def _gathered(b: Builder, node: Node, dy: Value) -> Passed:
    value, indices = _inputs(node)
    axis, count = _axis(node) % len(value.shape), indices.size
    shape = (*value.shape[:axis], count, *value.shape[axis + 1 :])
    row = tuple(count if n == axis else 1 for n in range(len(shape)))
    where = b.expand(b.reshape(indices, row), shape)
    given = b.reshape(dy, shape)
    return [(value, b.scatter_elements(zero(b, value), where, given, axis, "add"))]


def _gathered_elements(b: Builder, node: Node, dy: Value) -> Passed:
    value, indices = _inputs(node)
    axis = _axis(node)
    return [(value, b.scatter_elements(zero(b, value), indices, dy, axis, "add"))]


def _scattered(b: Builder, node: Node, dy: Value) -> Passed:
    value, indices, updates = _inputs(node)
    axis, reduction = _axis(node), node.attributes.get("reduction", "none")
    if reduction not in ("add", "none"):
        raise NotYet(f"gradients of gradients through a scatter that takes {reduction}")
    left = dy
    if reduction == "none":
        left = b.scatter_elements(dy, indices, zero(b, updates), axis)
    return [(value, left), (updates, b.gather_elements(dy, indices, axis))]


def _cumulated(b: Builder, node: Node, dy: Value) -> Passed:
    value, axis = _inputs(node)
    turned = {**node.attributes, "reverse": 1 - node.attributes.get("reverse", 0)}
    result = [(dy.dtype, dy.shape)]
    return [(value, b.node("CumSum", [dy, axis], result, **turned)[0])]


def _joined(b: Builder, node: Node, dy: Value) -> Passed:
    values, axis = _inputs(node), _axis(node)
    sizes = [value.shape[axis] for value in values]
    return list(zip(values, b.split(dy, sizes, axis), strict=True))


def _product(b: Builder, node: Node, dy: Value) -> Passed:
    left, right = _inputs(node)
    if min(len(left.shape), len(right.shape)) < 2:
        raise NotYet("gradients of gradients through a product with a vector")
    return [
        (left, b.matmul(dy, b.swap_last(right))),
        (right, b.matmul(b.swap_last(left), dy)),
    ]


def _softmax(b: Builder, node: Node, dy: Value) -> Passed:
    made, rank = node.outputs[0], len(node.outputs[0].shape)
    axis = node.attributes.get("axis", -1) % rank
    inner = b.sum(dy * made, [axis])
    kept = tuple(1 if n == axis else size for n, size in enumerate(made.shape))
    return [(_inputs(node)[0], made * (dy - b.reshape(inner, kept)))]


_RULES: dict[str, _Rule] = {
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "Div": _div,
    "Pow": _pow,
    "Where": _where,
    "Max": _chosen,
    "Min": _chosen,
    "Reshape": _reshaped,
    "Cast": _same,
    "Identity": _same,
    "Expand": _same,
    "Transpose": _transposed,
    "ReduceSum": _summed,
    "ReduceMean": _mean,
    "ReduceL2": _reduced(lambda b, x, y: x / y),
    "ReduceProd": _reduced(lambda b, x, y: y / x),
    "ReduceLogSumExp": _reduced(lambda b, x, y: b.map("Exp", x - y)),
    "ReduceSumSquare": _reduced(lambda b, x, y: x * 2.0),
    "CumSum": _cumulated,
    "Slice": _sliced,
    "Gather": _gathered,
    "GatherElements": _gathered_elements,
    "ScatterElements": _scattered,
    "Split": _same,
    "Concat": _joined,
    "MatMul": _product,
    "Softmax": _softmax,
    "Neg": lambda b, node, dy: [(_inputs(node)[0], -dy)],
    "Exp": _one(lambda b, x, y: y),
    "Log": _one(lambda b, x, y: 1.0 / x),
    "Sqrt": _one(lambda b, x, y: 0.5 / y),
    "Tanh": _one(lambda b, x, y: 1.0 - y * y),
    "Sigmoid": _one(lambda b, x, y: y * (1.0 - y)),
    "Sin": _one(lambda b, x, y: b.map("Cos", x)),
    "Cos": _one(lambda b, x, y: -b.map("Sin", x)),
    "Abs": _one(lambda b, x, y: b.map("Sign", x)),
    "Erf": _one(lambda b, x, y: b.map("Exp", -(x * x)) * (2 / sqrt(pi))),
}
#: Their results do not change with their inputs, or are not differentiable.
_STOPS = frozenset(
    {
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
        *("And", "Or", "Not", "Sign", "Floor", "Ceil", "Round", "IsNaN", "IsInf"),
    }
)


def zero(b: Builder, value: Value) -> Value:
    """Return zeros, as large as `value`, as the missing gradient."""
    return b.full(value.shape, np.dtype(value.dtype))
