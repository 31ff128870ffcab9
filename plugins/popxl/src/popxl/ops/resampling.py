"""Images at other sizes, regions of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from popxl.ops.utils import emit
from popxl.tensor import Tensor

InterpolateType = Literal["nearest", "linear", "cubic"]
NearestType = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
CoordinateTransformationType = Literal[
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
]
_MODES = get_args(InterpolateType)
_NEAREST = get_args(NearestType)
_COORDINATES = get_args(CoordinateTransformationType)


def interpolate(
    t: Tensor,
    scale_factor: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    mode: InterpolateType = "nearest",
    nearest_mode: NearestType = "round_prefer_floor",
    coordinate_transformation_mode: CoordinateTransformationType = "half_pixel",
) -> Tensor:
    """Resize along each axis by its scale factor."""
    for value, known in (
        (mode, _MODES),
        (nearest_mode, _NEAREST),
        (coordinate_transformation_mode, _COORDINATES),
    ):
        if value not in known:
            raise ValueError(f"Unknown mode of interpolate: {value!r}; one of {known}")
    attributes = {
        "scales": tuple(float(each) for each in scale_factor),
        "mode": mode,
        "nearest_mode": nearest_mode,
        "coordinates": coordinate_transformation_mode,
    }
    return emit("Resize", {"t": t}, ["interpolate_out"], attributes)[0]


def roi_align(
    t: Tensor,
    rois: Tensor,
    batch_index: Tensor,
    output_size: Sequence[int],
    spatial_scale: float,
    sampling_ratio: int,
) -> Tensor:
    """Return regions (x1, y1, x2, y2) of images, each averaged into `output_size`
    parts.
    """
    height, width = (int(each) for each in output_size)
    attributes = {
        "size": (height, width),
        "scale": float(spatial_scale),
        "ratio": int(sampling_ratio),
    }
    inputs = {"t": t, "rois": rois, "batch_index": batch_index}
    return emit("RoiAlign", inputs, ["roi_align_out"], attributes)[0]
