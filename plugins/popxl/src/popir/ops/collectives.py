"""Operators across replicas and across the devices of one.

In groups of one, reducing and gathering move nothing, so no exchange is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import prod

from popir.builder import Builder, Value
from popir.dtypes import Shape
from popir.errors import IrError
from popir.grouping import Collective, Kind, shard_size
from popir.ops.common import axis_of, rule, rules, same
from popir.records import Grad, GradRule, OpCall, Record, Spec, makes, register

#: ONNX operators that reduce a list of tensors; `mean` divides the sum.
_FOLDS = {
    "add": "Add",
    "mean": "Add",
    "square_add": "Add",
    "mul": "Mul",
    "min": "Min",
    "max": "Max",
    "and": "And",
    "or": "Or",
}


def _size(call: OpCall) -> int:
    size: int = call["group_size"]
    return size


def _exchange(
    b: Builder,
    call: OpCall,
    what: Kind,
    value: Value,
    shape: Shape,
    *,
    op: str = "",
    axis: int = 0,
) -> Value:
    """Exchange `value` in the groups of the operator; in groups of one return a view of
    it.
    """
    if _size(call) == 1:
        squared = op == "square_add"
        return b.reshape(value * value if squared else value, shape)
    name, groups = call["operator"], call["members"]
    return b.exchange(Collective(what, name, groups, op, axis, shape), value)


def _lower_reduce(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    (value,) = values
    return [_exchange(b, call, "reduce", value, value.shape, op=call["op"])]


@makes("ReplicatedAllReduceGrad")
def _added(call: OpCall) -> Sequence[GradRule] | None:
    if call["op"] != "add":
        return None

    def lower(g: Grad) -> Value:
        return _exchange(g.b, g.call, "reduce", g["g0"], g.shape(0), op="add")

    return [rule("ReplicatedAllReduceGrad", "g0", 0, lower)]


register(Record("ReplicatedAllReduce", same, _lower_reduce, _added))
register(Record("ReplicatedAllReduceInplace", same, _lower_reduce, writes=True))


def _gathered(call: OpCall) -> list[Spec]:
    (spec,) = call.inputs
    count, axis = call["group_size"], call["axis"]
    if call["output"] == "meta_shape":
        if not spec.meta_shape:
            raise IrError("only a shard, which has a meta_shape, is gathered to it")
        return [Spec(spec.dtype, spec.meta_shape)]
    if call["output"] == "new_axis":
        return [Spec(spec.dtype, (count, *spec.shape))]
    at = axis_of(axis, len(spec.shape))
    shape = tuple(n * count if i == at else n for i, n in enumerate(spec.shape))
    return [Spec(spec.dtype, shape or (count,))]


def _lower_gather(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    (value,), (made,) = values, _gathered(call)
    kind, axis = _gather_kind(call)
    if not value.shape or call["output"] == "new_axis":
        value = b.reshape(value, (1, *value.shape))
    if _size(call) == 1 and kind == "gather":
        return [b.reshape(_cut(b, value, made.shape), made.shape)]
    return [_exchange(b, call, kind, value, made.shape, axis=axis)]


def _gather_kind(call: OpCall) -> tuple[Kind, int]:
    """Return how the operator joins the parts.

    Raises if shards have more parts than the group has members.
    """
    if call["output"] == "meta_shape":
        return "gather", 0
    if call["output"] == "new_axis":
        return "concat", 0
    return "concat", axis_of(call["axis"], len(call.inputs[0].shape))


def _cut(b: Builder, value: Value, shape: Shape) -> Value:
    flat = b.reshape(value, (value.size,))
    size = prod(shape)
    return flat if value.size == size else b.slice(flat, [0], [size], [0], [1])


def _own_part(g: Grad) -> Value:
    """Return the member's own part of the gradient, which is not reduced."""
    kind, axis = _gather_kind(g.call)
    shape = g.shape(0)
    if kind == "gather":
        if _size(g.call) > 1:
            return _exchange(g.b, g.call, "shard", g["g0"], shape)
        return _padded(g.b, g["g0"], shape)
    return _exchange(g.b, g.call, "slice", g["g0"], shape, axis=axis)


def _padded(b: Builder, value: Value, shape: Shape) -> Value:
    flat = b.reshape(value, (value.size,))
    missing = prod(shape) - value.size
    if missing:
        flat = b.concat([flat, b.full((missing,), value.dtype)], 0)
    return b.reshape(flat, shape)


register(
    Record(
        "ReplicatedAllGather",
        _gathered,
        _lower_gather,
        rules(rule("ReplicatedAllGatherGrad", "g0", 0, _own_part)),
    )
)


def _scattered(call: OpCall) -> list[Spec]:
    (spec,) = call.inputs
    size = shard_size(prod(spec.shape), call["group_size"])
    return [Spec(spec.dtype, (size,), spec.shape if call["is_shard"] else ())]


def _lower_scatter(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    (made,) = _scattered(call)
    op = "" if call["op"] == "local" else call["op"]
    kind: Kind = "scatter" if op else "shard"
    return [_exchange(b, call, kind, values[0], made.shape, op=op)]


@makes("ReplicatedReduceScatterGrad")
def _local(call: OpCall) -> Sequence[GradRule] | None:
    if call["op"] != "local":
        return None

    def lower(g: Grad) -> Value:
        return _exchange(g.b, g.call, "gather", g["g0"], g.shape(0))

    return [rule("ReplicatedReduceScatterGrad", "g0", 0, lower)]


register(Record("ReplicatedReduceScatter", _scattered, _lower_scatter, _local))


def _sliced(call: OpCall) -> list[Spec]:
    (spec,) = call.inputs
    count = call["group_size"]
    at = axis_of(call["axis"], len(spec.shape))
    if not spec.shape or spec.shape[at] % count:
        raise IrError(
            f"axis {at} of {spec.shape} cannot be split into {count} equal blocks"
        )
    length = spec.shape[at] // count
    middle: Shape = () if length == 1 else (length,)
    return [Spec(spec.dtype, (*spec.shape[:at], *middle, *spec.shape[at + 1 :]))]


def _lower_slice(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    axis = axis_of(call["axis"], len(call.inputs[0].shape))
    shape = _sliced(call)[0].shape
    return [_exchange(b, call, "slice", values[0], shape, axis=axis)]


def _all_blocks(g: Grad) -> Value:
    shape = g.shape(0)
    axis = axis_of(g.call["axis"], len(shape))
    block = list(shape)
    block[axis] //= _size(g.call)
    value = g.b.reshape(g["g0"], block)
    return _exchange(g.b, g.call, "concat", value, shape, axis=axis)


register(
    Record(
        "ReplicatedSlice",
        _sliced,
        _lower_slice,
        rules(rule("ReplicatedSliceGrad", "g0", 0, _all_blocks)),
    )
)


def _listed(call: OpCall) -> list[Spec]:
    if len(set(call.inputs)) > 1:
        raise IrError(f"tensors of an all_reduce must be alike: {list(call.inputs)}")
    return [replace(spec, meta_shape=()) for spec in call.inputs]


def _fold(b: Builder, op: str, values: Sequence[Value]) -> Value:
    given = [v * v for v in values] if op == "square_add" else values
    total = reduce(lambda left, right: b.zip(_FOLDS[op], left, right), given)
    return total / float(len(values)) if op == "mean" else total


def _all_reduce(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    if call["forward_is_identity"]:
        return list(values)
    return [_fold(b, call["op"], values)] * len(values)


@makes("AllReduceGrad")
def _all_reduce_grads(call: OpCall) -> Sequence[GradRule] | None:
    if call["op"] != "add":
        return None
    count = len(call.inputs)

    def lower(g: Grad) -> list[Value]:
        given = [g[f"g{n}"] for n in range(count)]
        if g.call["backward_is_identity"]:
            return given
        return [_fold(g.b, "add", given)] * count

    needs = tuple(f"g{n}" for n in range(count))
    return [GradRule("AllReduceGrad", needs, tuple(range(count)), lower)]


register(Record("AllReduce", _listed, _all_reduce, _all_reduce_grads))
