"""Updates of variables: accumulators, optimiser steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from popir.builder import Builder, Value
from popir.errors import IrError
from popir.ops.common import axis_of, factor, same, widened
from popir.records import OpCall, Record, Spec, register


def _infer_accumulate(call: OpCall) -> list[Spec]:
    base, other = call.inputs[:2]
    try:
        shape = np.broadcast_shapes(base.shape, other.shape)
    except ValueError:
        shape = ()
    if shape != base.shape:
        raise IrError(
            f"{list(other.shape)} cannot be accumulated into {list(base.shape)}"
        )
    return [base]


def _accumulate(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    base = widened(b, values[0])
    x = b.cast(values[1], base.dtype)
    mode = call["mode"]
    if mode == "add":
        return [b.cast(base + x, values[0].dtype)]
    f = factor(b, call, values, "factor", base)
    if mode == "scaled":
        result = base + x * f
    elif mode == "square":
        result = base + x * x * f
    elif mode == "mean":
        more = f + 1.0
        result = base * (f / more) + x / more
    else:
        term = x * x if mode == "moving_square" else x
        result = base * f + term * (1.0 - f)
    return [b.cast(result, values[0].dtype)]


register(Record("Accumulate", _infer_accumulate, _accumulate, writes=True))


def _check_sparse(call: OpCall) -> None:
    """Raise IrError if shapes do not fit: at compilation, not at construction."""
    base, x, indices = call.inputs[:3]
    axis = axis_of(call["axis"], len(base.shape))
    shape = (*base.shape[:axis], *indices.shape, *base.shape[axis + 1 :])
    if len(indices.shape) != 1 or x.shape != shape:
        raise IrError(
            f"{list(x.shape)} at indices of shape {list(indices.shape)} cannot be "
            f"accumulated into {list(base.shape)} along axis {axis}"
        )


def _sparse(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    _check_sparse(call)
    base, indices = widened(b, values[0]), values[2]
    axis = axis_of(call["axis"], len(base.shape))
    x = b.cast(values[1], base.dtype)
    scaled = x * factor(b, call, values, "factor", base)
    column = b.reshape(indices, (indices.size, *[1] * (len(base.shape) - axis - 1)))
    at = b.expand(b.cast(column, np.int64), scaled.shape)
    summed = b.scatter_elements(base, at, scaled, axis, "add")
    return [b.cast(summed, values[0].dtype)]


register(Record("SparseAccumulate", same, _sparse, writes=True))


def _scale(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    base = widened(b, values[0])
    f = factor(b, call, values, "factor", base)
    if f == 0.0:
        return [b.full(base.shape, values[0].dtype)]
    return [b.cast(base * f, values[0].dtype)]


register(Record("AccumulatorScale", same, _scale, writes=True))


def _copy(b: Builder, _: OpCall, values: list[Value]) -> list[Value]:
    return [b.expand(values[1], values[0].shape)]


def _infer_copy(call: OpCall) -> list[Spec]:
    base, other = call.inputs
    if base.dtype is not other.dtype:
        raise IrError(f"{other.dtype} cannot be copied into {base.dtype}")
    return _infer_accumulate(call)


register(Record("CopyVarUpdate", _infer_copy, _copy, writes=True))


def _named(call: OpCall, values: list[Value], name: str) -> Value | None:
    index = call[name]
    return None if index is None else values[index]


def _infer_updater(call: OpCall) -> list[Spec]:
    weight = call["weight"]
    return [replace(call.inputs[0 if weight is None else weight], meta_shape=())]


def _updater(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    """Return the direction of Adam, Lamb or AdaMax, in float32, and the
    next time step.
    """
    first = b.cast(values[0], np.float32)
    second = b.cast(values[1], np.float32)
    step = _named(call, values, "time_step")
    results = []
    if step is not None:
        step = step + 1
        results.append(step)
        count = b.cast(b.reshape(step, ()), np.float32)
        for name in ("beta1", "beta2"):
            if call[name] is None:
                continue
            rest = 1.0 - b.zip("Pow", factor(b, call, values, name, first), count)
            if name == "beta1":
                first = first / rest
            else:
                second = second / rest
    if call["mode"] != "adamax":
        second = b.map("Sqrt", second)
    result = first / (second + call["epsilon"])
    weight = _named(call, values, "weight")
    if weight is not None and call["weight_decay"] is not None:
        decay = factor(b, call, values, "weight_decay", result)
        result = result + b.cast(weight, np.float32) * decay
    return [b.cast(result, call.outputs[0].dtype.carrier), *results]


register(Record("AdamUpdater", _infer_updater, _updater))


def _var_update(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    base = b.cast(values[0], np.float32)
    x, r1, r2 = (b.cast(v, np.float32) for v in values[1:4])
    norm, other = (b.map("Sqrt", b.reshape(r, ())) for r in (r1, r2))
    zero = b.zip("Mul", norm, other)
    most = call["max_weight_norm"]
    if most is not None:
        most = factor(b, call, values, "max_weight_norm", norm)
    bounded = norm if most is None else b.zip("Min", norm, most)
    safe = b.where(b.compare("Equal", other, 0), 1, other)
    ratio = b.where(b.compare("Equal", zero, 0), 1, bounded / safe)
    if call["learning_rate"] is not None:
        ratio = ratio * factor(b, call, values, "learning_rate", ratio)
    return [b.cast(base - x * ratio, values[0].dtype)]


register(Record("AdamVarUpdate", same, _var_update, writes=True))
