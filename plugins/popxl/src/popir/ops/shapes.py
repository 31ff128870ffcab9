"""Shape, slicing, joining; each also as a writable view.

A view's `put` returns the inputs that give a new result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from popir.builder import Builder, Value
from popir.dtypes import Shape
from popir.errors import IrError
from popir.ops.common import axis_of, rule, rules, same
from popir.records import Grad, OpCall, Record, Spec, makes, no_gradient, register


def _infer_reshape(call: OpCall) -> list[Spec]:
    (spec,) = call.inputs
    to, size = list(call["shape"]), math.prod(spec.shape)
    if -1 in to:
        rest = math.prod(n for n in to if n != -1)
        to[to.index(-1)] = size // rest if rest else 0
    if math.prod(to) != size:
        raise IrError(f"a tensor of shape {list(spec.shape)} cannot become {to}")
    return [Spec(spec.dtype, tuple(to))]


def _reshape(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    return [b.reshape(values[0], call.outputs[0].shape)]


def _reshape_back(b: Builder, call: OpCall, _: list[Value], new: Value) -> list[Value]:
    return [b.reshape(new, call.inputs[0].shape)]


_reshape_rules = rules(
    rule("ReshapeGrad", "g0", 0, lambda g: g.b.reshape(g["g0"], g.shape(0)))
)
register(Record("Reshape", _infer_reshape, _reshape, _reshape_rules))
register(
    Record(
        "ReshapeInplace", _infer_reshape, _reshape, _reshape_rules, put=_reshape_back
    )
)


def _order(call: OpCall) -> list[int]:
    rank = len(call.inputs[0].shape)
    return [axis % rank for axis in call["order"]] if rank else []


def _inverse(call: OpCall) -> list[int]:
    order = _order(call)
    return [order.index(axis) for axis in range(len(order))]


def _infer_transpose(call: OpCall) -> list[Spec]:
    (spec,) = call.inputs
    given = list(call["order"])
    if sorted(given) != list(range(len(spec.shape))):
        raise IrError(f"{given} is not a permutation of {len(spec.shape)} axes")
    return [Spec(spec.dtype, tuple(spec.shape[axis] for axis in given))]


def _transpose(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    return [b.transpose(values[0], _order(call))]


def _transpose_back(
    b: Builder, call: OpCall, _: list[Value], new: Value
) -> list[Value]:
    return [b.transpose(new, _inverse(call))]


_transpose_rules = rules(
    rule("TransposeGrad", "g0", 0, lambda g: g.b.transpose(g["g0"], _inverse(g.call)))
)
register(Record("Transpose", _infer_transpose, _transpose, _transpose_rules))
register(
    Record(
        "TransposeInplace",
        _infer_transpose,
        _transpose,
        _transpose_rules,
        put=_transpose_back,
    )
)
register(
    Record(
        "DetachInplace",
        same,
        lambda _, __, values: values,
        put=lambda _, __, ___, new: [new],
    )
)


def _ranges(call: OpCall) -> list[range]:
    """Return the elements that a slice or subsample keeps on each axis."""
    shape = call.inputs[0].shape
    kept = [range(size) for size in shape]
    for axis, start, stop, step in call["slices"]:
        at = axis_of(axis, len(shape))
        kept[at] = range(*slice(start, stop, step).indices(shape[at]))
    return kept


def _infer_slice(call: OpCall) -> list[Spec]:
    (spec,) = call.inputs
    for axis, _, _, step in call["slices"]:
        if step not in (None, 1, -1) and not call["any_step"]:
            raise IrError(f"a slice takes steps of 1 and -1, not {step}; see subsample")
        if call["any_step"] and step < 1:
            raise IrError(f"a stride must be 1 or more, not {step}")
        axis_of(axis, len(spec.shape))
    return [Spec(spec.dtype, tuple(len(kept) for kept in _ranges(call)))]


def _cut(b: Builder, value: Value, kept: Sequence[range]) -> Value:
    axes = [a for a, r in enumerate(kept) if r != range(value.shape[a])]
    if not axes:
        return value
    parts = [kept[axis] for axis in axes]
    return b.slice(
        value,
        [r.start for r in parts],
        [r.stop for r in parts],
        axes,
        [r.step for r in parts],
    )


def put_slice(b: Builder, base: Value, new: Value, kept: Sequence[range]) -> Value:
    """Return `base` with `new` at the elements that a slice keeps."""
    if not new.size:
        return base
    forward, flipped = [], []
    for axis, r in enumerate(kept):
        forward.append(r if r.step > 0 else r[::-1])
        flipped.append(range(len(r)) if r.step > 0 else range(len(r) - 1, -1, -1))
        assert len(flipped[axis]) == new.shape[axis]
    return _put(b, base, _cut(b, new, flipped), forward, 0)


def _put(
    b: Builder, base: Value, new: Value, kept: Sequence[range], axis: int
) -> Value:
    """Put `new` over `base`, from `axis` on."""
    rank = len(base.shape)
    while axis < rank and kept[axis] == range(base.shape[axis]):
        axis += 1
    if axis == rank:
        return new
    r = kept[axis]
    if r.step != 1:
        at = np.array(list(r), np.int64).reshape(-1, *[1] * (rank - axis - 1))
        inner = _cut(b, base, _only(base.shape, axis, r))
        shape = (*base.shape[:axis], len(r), *base.shape[axis + 1 :])
        updates = _put(b, inner, new, kept, axis + 1)
        indices = b.constant(np.broadcast_to(at, shape))
        return b.scatter_elements(base, indices, updates, axis)
    before, after = range(r.start), range(r.stop, base.shape[axis])
    inner = _cut(b, base, _only(base.shape, axis, r))
    parts = [_put(b, inner, new, kept, axis + 1)]
    if before:
        parts.insert(0, _cut(b, base, _only(base.shape, axis, before)))
    if after:
        parts.append(_cut(b, base, _only(base.shape, axis, after)))
    return b.concat(parts, axis)


def _only(shape: Shape, axis: int, kept: range) -> list[range]:
    return [kept if a == axis else range(n) for a, n in enumerate(shape)]


def _slice_grad(g: Grad) -> Value:
    zero = g.b.full(g.shape(0), g["g0"].dtype)
    return put_slice(g.b, zero, g["g0"], _ranges(g.call))


def _slice(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    return [_cut(b, values[0], _ranges(call))]


_slice_rules = rules(rule("SliceGrad", "g0", 0, _slice_grad))
register(Record("Slice", _infer_slice, _slice, _slice_rules))
register(
    Record(
        "SliceInplace",
        _infer_slice,
        _slice,
        put=lambda b, call, values, new: [put_slice(b, values[0], new, _ranges(call))],
        refuses="slice_ has no gradient",
    )
)
register(
    Record(
        "Subsample",
        _infer_slice,
        _slice,
        rules(rule("SubsampleGrad", "g0", 0, _slice_grad)),
    )
)


def _infer_split(call: OpCall) -> list[Spec]:
    (spec,) = call.inputs
    axis = axis_of(call["axis"], len(spec.shape))
    sizes = call["sizes"]
    if sum(sizes) != spec.shape[axis] or min(sizes, default=0) < 0:
        raise IrError(f"{list(sizes)} do not add up to {spec.shape[axis]} elements")
    cut = (*spec.shape[:axis],), spec.shape[axis + 1 :]
    return [Spec(spec.dtype, (*cut[0], size, *cut[1])) for size in sizes]


def _split(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    axis = axis_of(call["axis"], len(call.inputs[0].shape))
    return b.split(values[0], call["sizes"], axis)


@makes("SplitGrad")
def _split_rules(call: OpCall) -> list[object]:
    count = len(call["sizes"])

    def lower(g: Grad) -> Value:
        axis = axis_of(g.call["axis"], len(g.shape(0)))
        return g.b.concat([g[f"g{n}"] for n in range(count)], axis)

    return [rule("SplitGrad", " ".join(f"g{n}" for n in range(count)), 0, lower)]


register(Record("Split", _infer_split, _split, _split_rules))  # type: ignore[arg-type]


def _infer_concat(call: OpCall) -> list[Spec]:
    first = call.inputs[0]
    axis = axis_of(call["axis"], len(first.shape))
    for each in call.inputs:
        rest = [s.shape[:axis] + s.shape[axis + 1 :] for s in (first, each)]
        if len(each.shape) != len(first.shape) or rest[0] != rest[1]:
            shapes = [list(s.shape) for s in call.inputs]
            raise IrError(f"tensors of shapes {shapes} do not fit along axis {axis}")
    length = sum(each.shape[axis] for each in call.inputs)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return [replace(first, shape=shape, meta_shape=())]


def _concat(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    return [b.concat(values, axis_of(call["axis"], len(call.outputs[0].shape)))]


def _parts(b: Builder, call: OpCall, value: Value) -> list[Value]:
    axis = axis_of(call["axis"], len(call.outputs[0].shape))
    return b.split(value, [spec.shape[axis] for spec in call.inputs], axis)


@makes("ConcatGrad")
def _concat_rules(call: OpCall) -> list[object]:
    def part(n: int) -> object:
        return rule("ConcatGrad", "g0", n, lambda g: _parts(g.b, g.call, g["g0"])[n])

    return [part(n) for n in range(len(call.inputs))]


register(
    Record("Concat", _infer_concat, _concat, _concat_rules)  # type: ignore[arg-type]
)
register(
    Record(
        "ConcatInplace",
        _infer_concat,
        _concat,
        _concat_rules,  # type: ignore[arg-type]
        put=lambda b, call, _, new: _parts(b, call, new),
    )
)


def _infer_init(call: OpCall) -> list[Spec]:
    return [Spec(call["dtype"], tuple(call["shape"]), tuple(call["meta_shape"]))]


def _init(b: Builder, call: OpCall, _: list[Value]) -> list[Value]:
    spec = call.outputs[0]
    return [b.full(spec.shape, spec.dtype.carrier)]


register(Record("Init", _infer_init, _init, no_gradient))
