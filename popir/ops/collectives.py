"""Operators across replicas and across the devices of one.

Shapes are those of groups of any size. What runs is one replica: its groups are of one,
in which reducing and gathering move nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import prod

from popir.builder import Builder, Value
from popir.dtypes import Shape
from popir.errors import IrError, NotYet
from popir.ops.common import axis_of, rule, rules, same
from popir.records import Call, Grad, GradRule, Record, Spec, makes, register

#: How the tensors of a list become one; `mean` divides the sum of them.
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


def _alone(call: Call) -> None:
    if call["group_size"] > 1:
        raise NotYet("groups of several replicas do not run yet")


def _reduced(b: Builder, call: Call, values: list[Value]) -> list[Value]:
    _alone(call)
    (value,) = values
    return [value * value if call["op"] == "square_add" else value]


@makes("ReplicatedAllReduceGrad")
def _added(call: Call) -> Sequence[GradRule] | None:
    if call["op"] != "add":
        return None
    return [rule("ReplicatedAllReduceGrad", "g0", 0, lambda g: g["g0"])]


register(Record("ReplicatedAllReduce", same, _reduced, _added))
register(Record("ReplicatedAllReduceInplace", same, _reduced, writes=True))


def _gathered(call: Call) -> list[Spec]:
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


def _as_result(b: Builder, call: Call, values: list[Value]) -> list[Value]:
    """The elements as they are: they are all that the group has."""
    _alone(call)
    return [b.reshape(values[0], call.outputs[0].shape)]


def _as_input(g: Grad) -> Value:
    _alone(g.call)
    return g.b.reshape(g["g0"], g.shape(0))


register(
    Record(
        "ReplicatedAllGather",
        _gathered,
        lambda b, call, values: _as_result(b, _with_result(call, _gathered), values),
        rules(rule("ReplicatedAllGatherGrad", "g0", 0, _as_input)),
    )
)


def _scattered(call: Call) -> list[Spec]:
    (spec,) = call.inputs
    size = -(-prod(spec.shape) // call["group_size"])
    return [Spec(spec.dtype, (size,), spec.shape if call["is_shard"] else ())]


def _lower_scatter(b: Builder, call: Call, values: list[Value]) -> list[Value]:
    given = values if call["op"] == "local" else _reduced(b, call, values)
    return _as_result(b, _with_result(call, _scattered), given)


@makes("ReplicatedReduceScatterGrad")
def _local(call: Call) -> Sequence[GradRule] | None:
    if call["op"] != "local":
        return None
    return [rule("ReplicatedReduceScatterGrad", "g0", 0, _as_input)]


register(Record("ReplicatedReduceScatter", _scattered, _lower_scatter, _local))


def _sliced(call: Call) -> list[Spec]:
    (spec,) = call.inputs
    count = call["group_size"]
    at = axis_of(call["axis"], len(spec.shape))
    if spec.shape[at] % count:
        raise IrError(f"axis {at} of {spec.shape} is no {count} equal blocks")
    length = spec.shape[at] // count
    middle: Shape = () if length == 1 else (length,)
    return [Spec(spec.dtype, (*spec.shape[:at], *middle, *spec.shape[at + 1 :]))]


register(
    Record(
        "ReplicatedSlice",
        _sliced,
        lambda b, call, values: _as_result(b, _with_result(call, _sliced), values),
        rules(rule("ReplicatedSliceGrad", "g0", 0, _as_input)),
    )
)


def _with_result(call: Call, infer: object) -> Call:
    assert callable(infer)
    return Call(call.inputs, infer(call), call.attributes)


def _listed(call: Call) -> list[Spec]:
    if len(set(call.inputs)) > 1:
        raise IrError(f"tensors of an all_reduce must be alike: {list(call.inputs)}")
    return [replace(spec, meta_shape=()) for spec in call.inputs]


def _fold(b: Builder, op: str, values: Sequence[Value]) -> Value:
    given = [v * v for v in values] if op == "square_add" else values
    total = reduce(lambda left, right: b.zip(_FOLDS[op], left, right), given)
    return total / float(len(values)) if op == "mean" else total


def _all_reduce(b: Builder, call: Call, values: list[Value]) -> list[Value]:
    if call["forward_is_identity"]:
        return list(values)
    return [_fold(b, call["op"], values)] * len(values)


@makes("AllReduceGrad")
def _all_reduce_grads(call: Call) -> Sequence[GradRule] | None:
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
