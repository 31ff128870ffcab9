"""Resampling: images at other sizes, regions of images."""

from __future__ import annotations

import math

import numpy as np

from popir.builder import Builder, Value
from popir.dtypes import Shape
from popir.errors import IrError, NotYet
from popir.ops.common import rule, rules
from popir.records import Grad, OpCall, Record, Spec, register


def _size(length: int, scale: float) -> int:
    return math.floor(np.float32(length) * np.float32(scale))


def _infer_resize(call: OpCall) -> list[Spec]:
    (spec,) = call.inputs
    scales = call["scales"]
    if len(scales) != len(spec.shape):
        raise IrError(
            f"a tensor of shape {list(spec.shape)} needs one scale factor for each "
            f"axis, found {list(scales)}"
        )
    sizes = tuple(map(_size, spec.shape, scales))
    if min(sizes, default=1) < 1:
        raise IrError(f"scale factors {list(scales)} leave no element of {spec.shape}")
    return [Spec(spec.dtype, sizes)]


def _one_resize(
    b: Builder, call: OpCall, x: Value, scales: list[float], shape: Shape
) -> Value:
    empty: Value | None = None
    if call["coordinates"] == "tf_crop_and_resize":
        raise IrError("interpolate cannot run with tf_crop_and_resize: it has no roi")
    return b.node(
        "Resize",
        [x, empty, b.constant(np.array(scales, np.float32))],
        [(x.dtype, shape)],
        mode=call["mode"],
        nearest_mode=call["nearest_mode"],
        coordinate_transformation_mode=call["coordinates"],
    )[0]


def _resize(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    (x,) = values
    scales, shape = list(call["scales"]), call.outputs[0].shape
    # Sizes and modes that ONNX Runtime's kernels accept at once. Others are resized
    # axis by axis, with the same result, because the axes are independent.
    if len(shape) == 4 and scales[:2] == [1.0, 1.0]:
        return [_one_resize(b, call, x, scales, shape)]
    for axis, scale in enumerate(scales):
        if scale == 1.0:
            continue
        order = [a for a in range(len(shape)) if a != axis] + [axis]
        moved = b.transpose(x, order)
        rows = math.prod(moved.shape[:-1])
        flat = b.reshape(moved, (1, 1, rows, moved.shape[-1]))
        to = (1, 1, rows, shape[axis])
        flat = _one_resize(b, call, flat, [1.0, 1.0, 1.0, scale], to)
        back = b.reshape(flat, (*moved.shape[:-1], shape[axis]))
        x = b.transpose(back, [order.index(a) for a in range(len(shape))])
    return [x]


def _resize_grad(g: Grad) -> Value:
    """Compute the gradient of a resize.

    A resize is linear along each axis, so its results for the unit vectors are its
    matrix.
    """
    b, dy = g.b, g["g0"]
    for axis, scale in enumerate(g.call["scales"]):
        length, to = g.shape(0)[axis], dy.shape[axis]
        if scale == 1.0:
            continue
        units = b.constant(np.eye(length, dtype=dy.dtype).reshape(1, 1, length, length))
        scales = [1.0, 1.0, 1.0, scale]
        matrix = _one_resize(b, g.call, units, scales, (1, 1, length, to))
        turned = b.swap_last(b.reshape(matrix, (length, to)))
        rank = len(dy.shape)
        order = [a for a in range(rank) if a != axis] + [axis]
        moved = b.matmul(b.transpose(dy, order), turned)
        dy = b.transpose(moved, [order.index(a) for a in range(rank)])
    return dy


register(
    Record(
        "Resize",
        _infer_resize,
        _resize,
        rules(rule("ResizeGrad", "g0", 0, _resize_grad)),
    )
)


def _infer_roi(call: OpCall) -> list[Spec]:
    x, rois, index = call.inputs
    if len(x.shape) != 4:
        raise IrError(f"roi_align needs a tensor of rank 4, found {list(x.shape)}")
    if len(rois.shape) != 2 or rois.shape[1] != 4:
        raise IrError(f"regions must have shape [number, 4], found {list(rois.shape)}")
    if index.shape != rois.shape[:1] or not index.dtype.is_int:
        raise IrError(
            f"batch_index must be {rois.shape[0]} integers, found "
            f"{index.dtype}{list(index.shape)}"
        )
    return [Spec(x.dtype, (rois.shape[0], x.shape[1], *call["size"]))]


def _roi_align(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    x, rois, index = values
    height, width = call["size"]
    return b.node(
        "RoiAlign",
        [x, b.cast(rois, x.dtype), b.cast(index, np.int64)],
        [(x.dtype, call.outputs[0].shape)],
        typed=(0, 1),
        mode="avg",
        coordinate_transformation_mode="output_half_pixel",
        output_height=height,
        output_width=width,
        sampling_ratio=call["ratio"],
        spatial_scale=float(call["scale"]),
    )


def _shares(b: Builder, call: OpCall, rois: Value, axis: int) -> Value:
    """Return the weight of each row or column of the image for each region and part
    along an axis: [regions, parts, length].
    """
    length, parts = call.inputs[0].shape[2 + axis], call["size"][axis]
    ratio, count = call["ratio"], rois.shape[0]
    if ratio < 1:
        raise NotYet("the gradient of roi_align needs a sampling_ratio above 0")
    column = 1 - axis  # x1, y1, x2, y2
    first, last = (
        b.cast(b.slice(rois, [at], [at + 1], [1], [1]), np.float32) * call["scale"]
        for at in (column, column + 2)
    )
    step = b.zip("Max", last - first, 1.0) / float(parts * ratio)
    numbers = np.arange(parts * ratio, dtype=np.float32) + 0.5
    at = first + step * b.constant(numbers.reshape(1, -1))
    inside = b.node(
        "And",
        [
            b.compare("GreaterOrEqual", at, -1.0),
            b.compare("LessOrEqual", at, float(length)),
        ],
        [(np.dtype(bool), at.shape)],
    )[0]
    at = b.zip("Min", b.zip("Max", at, 0.0), float(length - 1))
    low = b.map("Floor", at)
    high = b.zip("Min", low + 1.0, float(length - 1))
    part = at - low
    shape = (*at.shape, 1)

    def spread(place: Value, share: Value) -> Value:
        hot = b.one_hot(b.cast(place, np.int64), length)
        return b.where(hot, b.reshape(b.where(inside, share, 0), shape), 0)

    weight = spread(low, 1.0 - part) + spread(high, part)
    grouped = b.reshape(weight, (count, parts, ratio, length))
    return b.sum(grouped, [2]) / float(ratio)


def _roi_grad(g: Grad) -> Value:
    b, dy, rois = g.b, g.b.cast(g["g0"], np.float32), g["i1"]
    rows = _shares(b, g.call, rois, 0)
    columns = _shares(b, g.call, rois, 1)
    count, parts, height = rows.shape
    over_rows = b.matmul(b.reshape(b.swap_last(rows), (count, 1, height, parts)), dy)
    width = columns.shape[2]
    wide = b.reshape(columns, (count, 1, columns.shape[1], width))
    each = b.matmul(over_rows, wide)
    number, channels = g.shape(0)[:2]
    belongs = b.cast(b.one_hot(b.cast(g["i2"], np.int64), number), np.float32)
    flat = b.reshape(each, (count, channels * height * width))
    summed = b.matmul(b.swap_last(belongs), flat)
    return b.cast(b.reshape(summed, g.shape(0)), g["g0"].dtype)


register(
    Record(
        "RoiAlign",
        _infer_roi,
        _roi_align,
        rules(rule("RoiAlignGrad", "g0 i1 i2", 0, _roi_grad)),
    )
)
