"""Operators for normalisation, convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from popir.builder import Builder, Value
from popir.errors import IrError
from popir.ops.common import rule, rules, widened
from popir.records import Grad, GradRule, OpCall, Record, Spec, register


def _infer_group_norm(call: OpCall) -> list[Spec]:
    x, weight, bias = call.inputs
    if len(x.shape) < 2:
        raise IrError(f"group_norm needs two axes at least, found {list(x.shape)}")
    channels, groups = x.shape[1], call["groups"]
    if groups < 1 or channels % groups:
        raise IrError(f"{channels} channels do not make {groups} groups")
    for each in (weight, bias):
        if each.shape != (channels,):
            raise IrError(
                f"weight and bias must have shape [{channels}], not {list(each.shape)}"
            )
    return [x, *[Spec(x.dtype, (x.shape[0] * groups,))] * 2]


def _grouped(call: OpCall) -> tuple[int, int]:
    shape = call.inputs[0].shape
    rows = shape[0] * call["groups"]
    return rows, math.prod(shape) // max(rows, 1)


def _channels(b: Builder, value: Value, rank: int) -> Value:
    return b.reshape(value, (1, value.size, *[1] * (rank - 2)))


def _group_norm(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    # In float16 an eps below 3e-8 is 0, and constant rows give NaN.
    dtype = values[0].dtype
    x, weight, bias = (widened(b, value) for value in values)
    flat = b.reshape(x, _grouped(call))
    mean = b.reduce("ReduceMean", flat, [1], keep=True)
    centred = flat - mean
    variance = b.reduce("ReduceMean", centred * centred, [1], keep=True)
    inverse = 1.0 / b.map("Sqrt", variance + call["eps"])
    normal = b.reshape(centred * inverse, x.shape)
    rank = len(x.shape)
    result = normal * _channels(b, weight, rank) + _channels(b, bias, rank)
    if dtype == np.float16:  # infinity times 0 would be NaN in the gradient
        inverse = b.zip("Min", inverse, float(np.finfo(np.float16).max))
    flats = (b.reshape(value, (mean.size,)) for value in (mean, inverse))
    return [b.cast(value, dtype) for value in (result, *flats)]


def _group_norm_grad(g: Grad) -> list[Value]:
    b, x, weight, dy = g.b, g["i0"], g["i1"], g["g0"]
    rows, count = _grouped(g.call)
    rank = len(x.shape)
    inverse = b.reshape(g["o2"], (rows, 1))
    flat = b.reshape(x, (rows, count)) - b.reshape(g["o1"], (rows, 1))
    normal = flat * inverse
    others = [axis for axis in range(rank) if axis != 1]
    d_weight = b.sum(dy * b.reshape(normal, x.shape), others)
    d_bias = b.sum(dy, others)
    inner = b.reshape(dy * _channels(b, weight, rank), (rows, count))
    mean = b.reduce("ReduceMean", inner, [1], keep=True)
    along = b.reduce("ReduceMean", inner * normal, [1], keep=True)
    d_x = (inner - mean - normal * along) * inverse
    return [b.reshape(d_x, x.shape), d_weight, d_bias]


_group_norm_rule = GradRule(
    "GroupNormalizationGrad",
    ("g0", "i0", "i1", "o1", "o2"),
    (0, 1, 2),
    _group_norm_grad,
)
register(Record("GroupNorm", _infer_group_norm, _group_norm, rules(_group_norm_rule)))


def _infer_batch_norm(call: OpCall) -> list[Spec]:
    x = call.inputs[0]
    if len(x.shape) < 3:
        raise IrError(f"batch_norm needs three axes at least, found {list(x.shape)}")
    for each in call.inputs[1:]:
        if each.shape != (x.shape[1],):
            raise IrError(
                f"scale, bias, mean and var must have shape [{x.shape[1]}], not "
                f"{list(each.shape)}"
            )
    return [x]


def _standard(b: Builder, call: OpCall, values: Sequence[Value]) -> tuple[Value, Value]:
    """Return the input less its mean over its deviation, and one over the deviation."""
    x, mean, variance = (widened(b, value) for value in values)
    rank = len(x.shape)
    inverse = 1.0 / b.map("Sqrt", _channels(b, variance, rank) + call["eps"])
    return (x - _channels(b, mean, rank)) * inverse, inverse


def _batch_norm(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    x, scale, bias, mean, variance = (widened(b, value) for value in values)
    normal, _ = _standard(b, call, (x, mean, variance))
    rank = len(x.shape)
    result = normal * _channels(b, scale, rank) + _channels(b, bias, rank)
    return [b.cast(result, values[0].dtype)]


def _batch_norm_grad(g: Grad) -> list[Value]:
    b, dtype = g.b, g["g0"].dtype
    dy, scale = widened(b, g["g0"]), widened(b, g["i1"])
    normal, inverse = _standard(b, g.call, (g["i0"], g["i3"], g["i4"]))
    rank = len(dy.shape)
    others = [axis for axis in range(rank) if axis != 1]
    d_x = dy * _channels(b, scale, rank) * inverse
    d_mean = -b.sum(d_x, others)
    d_variance = b.sum(d_x * normal * inverse * -0.5, others)
    made = [d_x, b.sum(dy * normal, others), b.sum(dy, others), d_mean, d_variance]
    return [b.cast(value, dtype) for value in made]


register(
    Record(
        "BatchNorm",
        _infer_batch_norm,
        _batch_norm,
        rules(
            GradRule(
                "BatchNormGrad",
                ("g0", "i0", "i1", "i3", "i4"),
                (0, 1, 2, 3, 4),
                _batch_norm_grad,
            )
        ),
    )
)


def _window(call: OpCall, kernel: Sequence[int], spatial: Sequence[int]) -> list[Any]:
    """Return strides, dilations, pads before and after, and results of each spatial
    axis.
    """
    rank = len(kernel)
    strides = list(call["stride"]) or [1] * rank
    dilations = list(call["dilation"]) or [1] * rank
    pads = list(call["padding"]) or [0] * 2 * rank
    if len(spatial) != rank or len(strides) != rank or len(dilations) != rank:
        raise IrError(
            f"a kernel of {list(kernel)} over {list(spatial)} needs {rank} strides and "
            f"dilations, found {strides} and {dilations}"
        )
    if len(pads) != 2 * rank:
        raise IrError(f"padding needs {2 * rank} numbers, found {pads}")
    result = []
    for axis in range(rank):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        size, step = spatial[axis], strides[axis]
        before, after = pads[axis], pads[rank + axis]
        if call["auto_pad"] in ("same_upper", "same_lower"):
            total = max((-(-size // step) - 1) * step + reach - size, 0)
            small, large = total // 2, total - total // 2
            upper = call["auto_pad"] == "same_upper"
            before, after = (small, large) if upper else (large, small)
        elif call["auto_pad"] == "valid":
            before = after = 0
        room = size + before + after - reach
        if room < 0 or step < 1:
            raise IrError(f"a kernel of {list(kernel)} does not fit {list(spatial)}")
        count = room // step + 1
        if call.attributes.get("ceil_mode"):
            count = -(-room // step) + 1
            # A window must begin inside the data or the padding before it.
            count -= (count - 1) * step >= size + before
        result.append((step, dilations[axis], before, after, count, reach))
    return result


def _columns(window: list[Any]) -> dict[str, Any]:
    return {
        "strides": [w[0] for w in window],
        "dilations": [w[1] for w in window],
        "pads": [*(w[2] for w in window), *(w[3] for w in window)],
    }


def _conv_window(call: OpCall) -> list[Any]:
    x, weight = call.inputs[:2]
    return _window(call, weight.shape[2:], x.shape[2:])


def infer_conv(call: OpCall) -> list[Spec]:
    x, weight = call.inputs[:2]
    groups = call["groups"]
    if len(x.shape) < 3 or len(weight.shape) != len(x.shape):
        raise IrError(
            f"a convolution of {list(x.shape)} with {list(weight.shape)}: both need "
            "the same rank, at least 3"
        )
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise IrError(
            f"{x.shape[1]} channels do not fit a weight of {list(weight.shape)} in "
            f"{groups} groups"
        )
    sizes = [w[4] for w in _conv_window(call)]
    return [Spec(x.dtype, (x.shape[0], weight.shape[0], *sizes))]


def _convolve(
    b: Builder, x: Value, weight: Value, shape: Sequence[int], **attributes: Any
) -> Value:
    result = [(x.dtype, tuple(shape))]
    return b.node("Conv", [x, weight], result, typed=(0, 1), **attributes)[0]


def conv(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    shape = call.outputs[0].shape
    columns = _columns(_conv_window(call))
    return [_convolve(b, values[0], values[1], shape, group=call["groups"], **columns)]


def _conv_data_grad(g: Grad) -> Value:
    b, dy, weight = g.b, g["g0"], g["i1"]
    window = _conv_window(g.call)
    sizes = g.shape(0)[2:]
    columns = _columns(window)
    extra = [
        size - ((w[4] - 1) * w[0] + w[5] - w[2] - w[3])
        for size, w in zip(sizes, window, strict=True)
    ]
    result = [(dy.dtype, g.shape(0))]
    return b.node(
        "ConvTranspose",
        [dy, weight],
        result,
        typed=(0, 1),
        group=g.call["groups"],
        output_padding=extra,
        **columns,
    )[0]


def _conv_weight_grad(g: Grad) -> Value:
    """Return the weight's gradient, which is a convolution too: of the data with the
    gradient.

    Samples are summed over, and strides and dilations change places.
    """
    b, groups, shape = g.b, g.call["groups"], g.shape(1)
    window = _conv_window(g.call)
    x, dy = g["i0"], g["g0"]
    order = [1, 0, *range(2, len(shape))]
    parts = []
    xs = b.split(x, [x.shape[1] // groups] * groups, 1) if groups > 1 else [x]
    dys = b.split(dy, [dy.shape[1] // groups] * groups, 1) if groups > 1 else [dy]
    columns = {
        "strides": [w[1] for w in window],
        "dilations": [w[0] for w in window],
        "pads": [*(w[2] for w in window), *(w[3] for w in window)],
    }
    for data, grad in zip(xs, dys, strict=True):
        sizes = [
            (n + w[2] + w[3] - ((w[4] - 1) * w[0] + 1)) // w[1] + 1
            for n, w in zip(x.shape[2:], window, strict=True)
        ]
        full = _convolve(
            b,
            b.transpose(data, order),
            b.transpose(grad, order),
            (data.shape[1], grad.shape[1], *sizes),
            **columns,
        )
        turned = b.transpose(full, order)
        spatial = list(range(2, len(shape)))
        stops = list(shape[2:])
        zeros, ones = [0] * len(stops), [1] * len(stops)
        parts.append(b.slice(turned, zeros, stops, spatial, ones))
    return b.concat(parts, 0)


register(
    Record(
        "Conv",
        infer_conv,
        conv,
        rules(
            rule("ConvDataGrad", "g0 i0 i1", 0, _conv_data_grad),
            rule("ConvWeightsGrad", "g0 i0 i1", 1, _conv_weight_grad),
        ),
    )
)


def _transposed_window(call: OpCall) -> list[Any]:
    """Return stride, pads before and after, output padding, and result of each spatial
    axis.
    """
    x, weight = call.inputs[:2]
    spatial, kernel = x.shape[2:], weight.shape[2:]
    rank = len(spatial)
    strides = list(call["stride"]) or [1] * rank
    pads = list(call["padding"]) or [0] * 2 * rank
    extra = list(call["output_padding"]) or [0] * rank
    given = list(call["output_shape"])[-rank:] if call["output_shape"] else []
    if any(each != 1 for each in call["dilation"]):
        raise IrError(f"conv_transpose needs dilations of 1, found {call['dilation']}")
    lengths = {len(strides), len(extra), len(pads) / 2, len(given) or rank}
    if lengths != {rank} or (call["auto_pad"] == "valid" and given):
        raise IrError(
            f"conv_transpose over {rank} axes: stride {strides}, padding {pads}, "
            f"output_padding {extra}, output_shape {given}, {call['auto_pad']}"
        )
    found = []
    for axis in range(rank):
        full = strides[axis] * (spatial[axis] - 1) + extra[axis] + kernel[axis]
        before, after = pads[axis], pads[rank + axis]
        wanted = given[axis] if given else None
        if wanted is None and call["auto_pad"] in ("same_upper", "same_lower"):
            wanted = spatial[axis] * strides[axis]
        if call["auto_pad"] == "valid":
            before = after = 0
        if wanted is not None:
            total = full - wanted
            small, large = total // 2, total - total // 2
            upper = call["auto_pad"] == "same_upper"
            before, after = (small, large) if upper else (large, small)
        size = full - before - after
        # A larger requested result gives negative paddings, so the result ends in
        # zeros.
        is_wrong = wanted is None and min(before, after) < 0
        if size < 1 or is_wrong or strides[axis] < 1:
            raise IrError(
                f"conv_transpose of {list(x.shape)} with {list(weight.shape)} cannot "
                f"give {size} elements, padded by {before} and {after}"
            )
        # ONNX Runtime takes output padding below the stride: more is made as zeros.
        rest = extra[axis] if extra[axis] < strides[axis] else 0
        after -= extra[axis] - rest
        found.append((strides[axis], before, after, rest, size))
    return found


def infer_conv_transpose(call: OpCall) -> list[Spec]:
    x, weight = call.inputs[:2]
    groups = call["groups"]
    if len(x.shape) < 3 or len(weight.shape) != len(x.shape):
        raise IrError(
            f"a convolution of {list(x.shape)} with {list(weight.shape)}: both need "
            "the same rank, at least 3"
        )
    if x.shape[1] != weight.shape[0] or x.shape[1] % groups:
        raise IrError(
            f"{x.shape[1]} channels do not fit a weight of {list(weight.shape)} in "
            f"{groups} groups"
        )
    sizes = [w[4] for w in _transposed_window(call)]
    return [Spec(x.dtype, (x.shape[0], weight.shape[1] * groups, *sizes))]


def conv_transpose(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    window = _transposed_window(call)
    shape = call.outputs[0].shape
    cut = [(max(w[1], 0), max(w[2], 0)) for w in window]
    added = [(max(-w[1], 0), max(-w[2], 0)) for w in window]
    sizes = [n - sum(a) for n, a in zip(shape[2:], added, strict=True)]
    if min(sizes) < 1:  # the paddings cut off all but the added zeros
        return [b.full(shape, values[0].dtype)]
    (result,) = b.node(
        "ConvTranspose",
        values[:2],
        [(values[0].dtype, (*shape[:2], *sizes))],
        typed=(0, 1),
        group=call["groups"],
        strides=[w[0] for w in window],
        pads=[*(before for before, _ in cut), *(after for _, after in cut)],
        output_padding=[w[3] for w in window],
    )
    for axis, sides in enumerate(added, 2):
        parts = [result]
        for at, count in zip((0, len(parts)), sides, strict=True):
            if count:
                zeros = tuple(
                    count if n == axis else size for n, size in enumerate(result.shape)
                )
                parts.insert(at and len(parts), b.full(zeros, result.dtype))
        result = b.concat(parts, axis)
    return [result]


register(Record("ConvTranspose", infer_conv_transpose, conv_transpose))


def _pool_window(call: OpCall) -> list[Any]:
    kernel = call["kernel"]
    window = _window(call, kernel, call.inputs[0].shape[2:])
    for length, (_, dilation, before, after, *_) in zip(kernel, window, strict=True):
        if dilation < 1 or min(before, after) < 0 or max(before, after) >= length:
            raise IrError(
                "a pool needs dilations from 1, and pads from 0 that are all less "
                f"than its kernel {list(kernel)}; found {_columns(window)}"
            )
    return window


def _infer_pool(call: OpCall) -> list[Spec]:
    (x,) = call.inputs
    sizes = [w[4] for w in _pool_window(call)]
    return [Spec(x.dtype, (*x.shape[:2], *sizes))]


def _pool(operator: str) -> Any:
    def lower(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
        extra: dict[str, Any] = (
            {"count_include_pad": 0} if operator == "AveragePool" else {}
        )
        return b.node(
            operator,
            values,
            [(values[0].dtype, call.outputs[0].shape)],
            kernel_shape=list(call["kernel"]),
            ceil_mode=int(call["ceil_mode"]),
            **_columns(_pool_window(call)),
            **extra,
        )

    return lower


def _positions(call: OpCall) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return for each result and element of its window the index of the data element,
    and whether it exists (no padding). Data are flat over the spatial axes.
    """
    spatial = call.inputs[0].shape[2:]
    kernel, window = call["kernel"], _pool_window(call)
    at = np.zeros((1, 1), np.int64)
    inside = np.ones((1, 1), bool)
    for size, length, w in zip(spatial, kernel, window, strict=True):
        step, dilation, before, _, count, _ = w
        here = np.arange(count)[:, None] * step + np.arange(length) * dilation - before
        legal = (here >= 0) & (here < size)
        rows, columns = at.shape
        joined = at[:, None, :, None] * size + here.clip(0, size - 1)[None, :, None]
        both = inside[:, None, :, None] & legal[None, :, None]
        at = joined.reshape(rows * count, columns * length)
        inside = both.reshape(rows * count, columns * length)
    return at, inside


def _pool_grad(g: Grad, largest: bool) -> Value:
    b, call, dy = g.b, g.call, widened(g.b, g["g0"])
    at, inside = _positions(call)
    outer = g.shape(0)[:2]
    lead = (math.prod(outer), 1)
    results, width = at.shape
    flat_dy = b.reshape(dy, (lead[0], results, 1))
    if largest:
        # Among equal elements the first in the window counts.
        data = b.reshape(g["i0"], (lead[0], math.prod(g.shape(0)[2:])))
        seen = b.gather(data, b.constant(at), 1)
        best = b.reshape(g["o0"], (lead[0], results, 1))
        hit = b.compare("Equal", seen, best)
        real = b.constant(inside)
        hit = b.node("And", [hit, real], [(np.dtype(bool), hit.shape)])[0]
        share = b.cast(hit, dy.dtype)
        before = b.node(
            "CumSum", [share, b.constant(np.int64(2))], [(dy.dtype, share.shape)]
        )[0]
        first = b.compare("Equal", before, 1)
        share = b.where(first, share, 0)
    else:
        counts = np.maximum(inside.sum(axis=1, keepdims=True), 1)
        share = b.constant((inside / counts).astype(dy.dtype))
    spread = b.reshape(flat_dy * share, (lead[0], results * width))
    zero = b.full((lead[0], math.prod(g.shape(0)[2:])), dy.dtype)
    flat = np.broadcast_to(at.reshape(1, -1), spread.shape)
    summed = b.scatter_elements(zero, b.constant(flat), spread, 1, "add")
    return b.cast(b.reshape(summed, g.shape(0)), g["g0"].dtype)


register(
    Record(
        "MaxPool",
        _infer_pool,
        _pool("MaxPool"),
        rules(rule("MaxPoolGrad", "g0 i0 o0", 0, lambda g: _pool_grad(g, True))),
    )
)
register(
    Record(
        "AveragePool",
        _infer_pool,
        _pool("AveragePool"),
        rules(rule("AveragePoolGrad", "g0 o0", 0, lambda g: _pool_grad(g, False))),
    )
)
