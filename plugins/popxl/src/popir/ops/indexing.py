"""Gathering and scattering by indices known only when it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from popir.builder import Builder, Value
from popir.dtypes import Shape
from popir.errors import IrError
from popir.ops.common import axis_of, rule, rules
from popir.records import Grad, OpCall, Record, Spec, makes, register


def _axis(call: OpCall) -> int:
    return axis_of(call["axis"], len(call.inputs[0].shape))


def _infer_gather(call: OpCall) -> list[Spec]:
    spec, indices = call.inputs
    if not indices.dtype.is_int:
        raise IrError(f"indices must be integers, found {indices.dtype}")
    axis, groups = _axis(call), _groups(call)
    if groups == 1:
        shape = (*spec.shape[:axis], *indices.shape, *spec.shape[axis + 1 :])
        return [Spec(spec.dtype, shape)]
    _check_groups(groups, axis, spec, indices)
    shape = (*spec.shape[:axis], *indices.shape[1:], *spec.shape[axis + 1 :])
    return [Spec(spec.dtype, shape)]


def _groups(call: OpCall) -> int:
    count: int = call.attributes.get("groups", 1)
    return count


def _check_groups(groups: int, axis: int, *specs: Spec) -> None:
    """Return whether the first axis counts groups, which indices do not choose from."""
    if axis == 0 or any(spec.shape[:1] != (groups,) for spec in specs):
        raise IrError(
            f"{groups} groups need tensors whose first axis is theirs, and another "
            f"axis for the indices; found {[list(s.shape) for s in specs]}, axis {axis}"
        )


def _each_group(b: Builder, value: Value, groups: int) -> list[Value]:
    parts = b.split(value, [1] * groups, 0)
    return [b.reshape(part, value.shape[1:]) for part in parts]


def _together(b: Builder, values: list[Value]) -> Value:
    return b.concat([b.reshape(v, (1, *v.shape)) for v in values], 0)


def _legal(b: Builder, indices: Value, size: int) -> Value:
    """Return legal indices: those out of range become the first or last."""
    at = b.cast(indices, np.int64)
    return b.zip("Min", b.zip("Max", at, -size), size - 1)


def _is_inside(b: Builder, indices: Value, size: int) -> Value:
    at = b.cast(indices, np.int64)
    low = b.compare("GreaterOrEqual", at, 0)
    high = b.compare("Less", at, size)
    return b.node("And", [low, high], [(np.dtype(bool), at.shape)])[0]


def _gather(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    base, indices = values
    axis, groups = _axis(call), _groups(call)
    zero = call["zero_out_of_range"]
    if groups == 1:
        return [_taken(b, base, indices, axis, zero)]
    pairs = zip(*(_each_group(b, v, groups) for v in values), strict=True)
    return [_together(b, [_taken(b, x, i, axis - 1, zero) for x, i in pairs])]


def _taken(b: Builder, base: Value, indices: Value, axis: int, zero: bool) -> Value:
    size = base.shape[axis]
    found = b.gather(base, _legal(b, indices, size), axis)
    if not zero:
        return found
    inside = _is_inside(b, indices, size)
    trailing = len(base.shape) - axis - 1
    mask = b.reshape(inside, (*indices.shape, *[1] * trailing))
    return b.where(mask, found, 0)


def _gather_grad(g: Grad) -> Value:
    b, axis, groups = g.b, _axis(g.call), _groups(g.call)
    zero, shape = g.call["zero_out_of_range"], g.shape(0)
    if groups == 1:
        return _given_back(b, g["g0"], g["i1"], shape, axis, zero)
    pairs = zip(*(_each_group(b, g[n], groups) for n in ("g0", "i1")), strict=True)
    return _together(
        b, [_given_back(b, dy, i, shape[1:], axis - 1, zero) for dy, i in pairs]
    )


def _given_back(
    b: Builder, dy: Value, indices: Value, shape: Shape, axis: int, zero: bool
) -> Value:
    at = _legal(b, indices, shape[axis])
    dy = b.reshape(dy, (*shape[:axis], indices.size, *shape[axis + 1 :]))
    column = b.reshape(at, (indices.size, *[1] * (len(shape) - axis - 1)))
    if zero:
        inside = _is_inside(b, b.reshape(indices, column.shape), shape[axis])
        dy = b.where(inside, dy, 0)
    nothing = b.full(shape, dy.dtype)
    return b.scatter_elements(nothing, b.expand(column, dy.shape), dy, axis, "add")


for _type in ("Gather", "TiedGather"):
    register(
        Record(
            _type,
            _infer_gather,
            _gather,
            rules(rule(f"{_type}Grad", "g0 i1", 0, _gather_grad)),
        )
    )


def _infer_scatter(call: OpCall) -> list[Spec]:
    base, indices, values = call.inputs
    if indices.shape != values.shape or len(indices.shape) != len(base.shape):
        raise IrError(
            f"indices of shape {list(indices.shape)} and values of shape "
            f"{list(values.shape)} do not scatter into {list(base.shape)}"
        )
    return [base]


register(
    Record(
        "Scatter",
        _infer_scatter,
        lambda b, call, values: [
            b.scatter_elements(values[0], values[1], values[2], _axis(call))
        ],
        rules(
            rule(
                "ScatterDataGrad",
                "g0 i1",
                0,
                lambda g: g.b.scatter_elements(
                    g["g0"], g["i1"], g.b.full(g.shape(1), g["g0"].dtype), _axis(g.call)
                ),
            ),
            rule(
                "ScatterUpdateGrad",
                "g0 i1",
                2,
                lambda g: g.b.gather_elements(g["g0"], g["i1"], _axis(g.call)),
            ),
        ),
    )
)


def _infer_onehot(call: OpCall) -> list[Spec]:
    indices, values = call.inputs
    axis = axis_of(call["axis"], len(indices.shape) + 1)
    if call["classes"] < 0:
        raise IrError(f"onehot takes no negative number of classes: {call['classes']}")
    shape = list(indices.shape)
    shape.insert(axis, call["classes"])
    return [Spec(values.dtype, tuple(shape))]


def _onehot(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    indices, pair = values
    rank = len(indices.shape)
    axis = axis_of(call["axis"], rank + 1)
    hot = b.one_hot(b.cast(indices, np.int64), call["classes"])
    order = [*range(rank)]
    order.insert(axis, rank)
    off, on = (b.reshape(v, ()) for v in b.split(pair, [1, 1], 0))
    return [b.where(b.transpose(hot, order), on, off)]


def _onehot_grad(g: Grad) -> Value:
    b = g.b
    (hot,) = _onehot(b, g.call, [g["i0"], b.constant(np.array([0, 1], g["g0"].dtype))])
    every = list(range(len(hot.shape)))
    on = b.sum(g["g0"] * hot, every)
    off = b.sum(g["g0"] * (1.0 - hot), every)
    return b.concat([b.reshape(off, (1,)), b.reshape(on, (1,))], 0)


register(
    Record(
        "Onehot",
        _infer_onehot,
        _onehot,
        rules(rule("OnehotGrad", "g0 i0", 1, _onehot_grad)),
    )
)


def _infer_window(call: OpCall) -> list[Spec]:
    spec, index = call.inputs[0], call.inputs[1]
    axes, sizes = call["axes"], call["sizes"]
    if len(axes) != len(sizes) or index.shape != (len(axes),):
        raise IrError(
            f"one start and one size for each of the axes {list(axes)}: found an "
            f"index of shape {list(index.shape)} and sizes {list(sizes)}"
        )
    shape = list(spec.shape)
    for axis, size in zip(axes, sizes, strict=True):
        at = axis_of(axis, len(shape))
        if not 0 <= size <= shape[at]:
            raise IrError(f"a window of {size} does not fit into {shape[at]} elements")
        shape[at] = size
    return [Spec(spec.dtype, tuple(shape))]


def _windows(b: Builder, call: OpCall, index: Value) -> list[tuple[int, Value]]:
    """Return for each axis the positions of the window's elements."""
    result = []
    rank = len(call.inputs[0].shape)
    for n, (axis, size) in enumerate(zip(call["axes"], call["sizes"], strict=True)):
        start = b.slice(b.cast(index, np.int64), [n], [n + 1], [0], [1])
        at = start + b.constant(np.arange(size, dtype=np.int64))
        full = call.inputs[0].shape[axis_of(axis, rank)]
        # Clamp the window to the end: beyond it the result is undefined, but must not
        # fail.
        result.append((axis_of(axis, rank), b.zip("Min", at, full - 1)))
    return result


def _read_window(b: Builder, call: OpCall, value: Value, index: Value) -> Value:
    for axis, at in _windows(b, call, index):
        value = b.gather(value, at, axis)
    return value


def _write_window(
    b: Builder, call: OpCall, base: Value, index: Value, new: Value
) -> Value:
    def write(base: Value, new: Value, windows: list[tuple[int, Value]]) -> Value:
        if not windows:
            return new
        (axis, at), *rest = windows
        inner = write(b.gather(base, at, axis), new, rest) if rest else new
        column = b.reshape(at, (at.size, *[1] * (len(base.shape) - axis - 1)))
        return b.scatter_elements(base, b.expand(column, inner.shape), inner, axis)

    return write(base, new, _windows(b, call, index))


def _window_grad(g: Grad) -> Value:
    zero = g.b.full(g.shape(0), g["g0"].dtype)
    return _write_window(g.b, g.call, zero, g["i1"], g["g0"])


register(
    Record(
        "DynamicSlice",
        _infer_window,
        lambda b, call, values: [_read_window(b, call, *values)],
        rules(rule("DynamicSliceGrad", "g0 i1", 0, _window_grad)),
    )
)


def _infer_update(call: OpCall) -> list[Spec]:
    (window,) = _infer_window(call)
    update = call.inputs[2]
    if update.dtype is not window.dtype:
        raise IrError(
            f"a window of {window.dtype}{list(window.shape)} cannot become "
            f"{update.dtype}{list(update.shape)}"
        )
    return [call.inputs[0]]


def _update(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    (window,) = _infer_window(call)
    # Check the shape at compilation, because the original builds such programs.
    if call.inputs[2].shape != window.shape:
        raise IrError(
            f"a window of shape {list(window.shape)} cannot become "
            f"{list(call.inputs[2].shape)}"
        )
    base, index, new = values
    return [_write_window(b, call, base, index, new)]


def _rest_grad(g: Grad) -> Value:
    zero = g.b.full(g.shape(2), g["g0"].dtype)
    return _write_window(g.b, g.call, g["g0"], g["i1"], zero)


_update_rules: Callable[..., object] = rules(
    rule("DynamicUpdateToUpdateGrad", "g0 i1", 0, _rest_grad),
    rule(
        "DynamicUpdateUpdaterGrad",
        "g0 i1",
        2,
        lambda g: _read_window(g.b, g.call, g["g0"], g["i1"]),
    ),
)
register(
    Record("DynamicUpdate", _infer_update, _update, _update_rules)  # type: ignore[arg-type]
)
register(Record("DynamicUpdateInplace", _infer_update, _update, writes=True))


def _infer_reduce(call: OpCall) -> list[Spec]:
    data, indices = call.inputs[:2]
    axis, groups = _axis(call), _groups(call)
    if groups > 1:
        _check_groups(groups, axis, data, indices)
    few = len(indices.shape) - (groups > 1)
    if few == 1 and len(indices.shape) < len(data.shape) and call["spread"]:
        if indices.shape[-1] != data.shape[axis]:
            raise IrError(
                f"{indices.shape[-1]} indices for {data.shape[axis]} rows of axis "
                f"{axis}"
            )
    elif indices.shape != data.shape:
        raise IrError(
            f"indices of shape {list(indices.shape)} do not fit data of shape "
            f"{list(data.shape)}"
        )
    shape = list(data.shape)
    shape[axis] = call["size"]
    if len(call.inputs) > 2 and call.inputs[2].shape != tuple(shape):
        raise IrError(
            f"initial values must have shape {shape}, not {list(call.inputs[2].shape)}"
        )
    return [replace(data, shape=tuple(shape))]


_START = {"sum": 0.0, "none": 0.0, "max": -np.inf, "min": np.inf}
_ONNX = {"sum": "add", "none": "none", "max": "max", "min": "min"}


def _rows(b: Builder, call: OpCall, indices: Value) -> Value:
    """Return one index for each element of the data."""
    data, axis = call.inputs[0], _axis(call)
    if indices.shape == data.shape:
        return indices
    # Groups are along the first axis of both, so one more axis is inserted after it.
    lead = indices.shape[:-1]
    between = [1] * (axis - len(lead))
    behind = [1] * (len(data.shape) - axis - 1)
    column = b.reshape(indices, (*lead, *between, indices.shape[-1], *behind))
    return b.expand(column, data.shape)


def _scatter_reduce(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    data, reduction, axis = values[0], call["reduction"], _axis(call)
    at = b.indices(_rows(b, call, values[1]))
    shape = call.outputs[0].shape
    if len(values) > 2:
        base = values[2]
    else:
        start = _START[reduction]
        if data.dtype.kind != "f" and np.isinf(start):
            limits = np.iinfo(data.dtype)
            start = limits.min if start < 0 else limits.max
        base = b.full(shape, data.dtype, start)
    result = b.scatter_elements(base, at, data, axis, _ONNX[reduction])
    if len(values) > 2 or reduction in ("sum", "none"):
        return [result]
    hit = b.scatter_elements(
        b.full(shape, np.int32), at, b.full(data.shape, np.int32, 1), axis
    )
    return [b.where(b.compare("Greater", hit, 0), result, 0)]


def _data_grad(g: Grad) -> Value:
    axis = _axis(g.call)
    at = _rows(g.b, g.call, g["i1"])
    dy = g.b.gather_elements(g["g0"], at, axis)
    if g.call["reduction"] == "sum" or g.call["reduction"] == "none":
        return dy
    winner = g.b.gather_elements(g["o0"], at, axis)
    return g.b.where(g.b.compare("Equal", winner, g["i0"]), dy, 0)


def _start_grad(g: Grad) -> Value:
    b, axis = g.b, _axis(g.call)
    if g.call["reduction"] == "sum":
        return g["g0"]
    if g.call["reduction"] == "none":
        at = _rows(b, g.call, g["i1"])
        return b.scatter_elements(g["g0"], at, b.full(at.shape, g["g0"].dtype), axis)
    return b.where(b.compare("Equal", g["o0"], g["i2"]), g["g0"], 0)


@makes("ScatterReduceGrad", "ScatterReduceInitGrad")
def _reduce_rules(call: OpCall) -> list[object]:
    made: list[object] = [rule("ScatterReduceGrad", "g0 i0 i1 o0", 0, _data_grad)]
    if len(call.inputs) > 2:
        made.append(rule("ScatterReduceInitGrad", "g0 i1 i2 o0", 2, _start_grad))
    return made


register(
    Record(
        "ScatterReduce",
        _infer_reduce,
        _scatter_reduce,
        _reduce_rules,  # type: ignore[arg-type]
    )
)
