"""The plan of an input, from its shape and the section `[image]`."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.spec import ModelSpec, TensorSpec, notation
from popgate_images.config import ImageConfig
from popgate_images.plan import CHANNELS, DecodePlan

_WITH_ROWS: Final = {4: ("NCHW", "NHWC"), 3: ("NHW",)}
_WITHOUT_ROWS: Final = {4: ("NCHW", "NHWC"), 3: ("CHW", "HWC"), 2: ("HW",)}


def input_of(spec: ModelSpec, config: ImageConfig) -> TensorSpec:
    """Return the input that takes pictures. Raises ValueError if it is ambiguous."""
    if config.input:
        found = spec.inputs_by_name.get(config.input)
        if found is None:
            known = ", ".join(spec.inputs_by_name)
            raise ValueError(
                f"[image] input is '{config.input}'; the model's inputs are {known}"
            )
        return found
    likely = [t for t in spec.inputs if t.type.kind in "fui" and _rank(t) in (2, 3, 4)]
    needed = [t for t in likely if t.name not in spec.defaults]
    if len(needed) != 1:
        shown = ", ".join(
            f"'{t.name}' {notation(t.datatype, t.shape)}" for t in spec.inputs
        )
        raise ValueError(
            "[image] must name its input: the model takes "
            f"{shown or 'nothing'}, and {len(needed)} of these could be "
            "pictures"
        )
    return needed[0]


def _rank(tensor: TensorSpec) -> int:
    return len(tensor.shape or ())


def plan_for(spec: ModelSpec, tensor: TensorSpec, config: ImageConfig) -> DecodePlan:
    """Return the plan of an input. Raises ValueError if section and shape contradict
    each other, or do not decide everything.
    """
    what = f"input '{tensor.name}' {notation(tensor.datatype, tensor.shape)}"
    if tensor.type.kind not in "fui" or tensor.datatype == "BF16":
        raise ValueError(f"[image]: {what} is not an input of numbers")
    layout = _layout(spec, tensor, config, what)
    dims = dict(zip(layout, tensor.shape or (), strict=True))
    mode = config.mode or ("RGB" if dims.get("C", 1) == 3 else "L")
    channels = CHANNELS[mode]
    if dims.get("C", 1) not in (-1, channels):
        msg = f"[image]: mode {mode} has {channels} channels, {what} has {dims['C']}"
        raise ValueError(msg)
    height, width = config.size or (dims["H"], dims["W"])
    if height < 1 or width < 1:
        raise ValueError(
            f"[image] needs size = [HEIGHT, WIDTH], because {what} does not fix it"
        )
    for side, wanted in (("H", height), ("W", width)):
        if dims[side] not in (-1, wanted):
            raise ValueError(
                f"[image] size is [{height}, {width}], which does not fit {what}"
            )
    if config.shorter and config.shorter < max(height, width):
        raise ValueError(
            f"[image] shorter is {config.shorter}, too small to cut out "
            f"[{height}, {width}]"
        )
    for name, numbers in (("mean", config.mean), ("std", config.std)):
        if len(numbers) not in (1, channels):
            raise ValueError(
                f"[image] {name} has {len(numbers)} numbers for {channels} channels"
            )
    return DecodePlan(
        height=height,
        width=width,
        mode=mode,
        channels_first="C" not in layout or layout.index("C") < layout.index("H"),
        resize=config.resize,
        shorter=config.shorter,
        resample=config.resample,
        fill=config.fill,
        orientation=config.orientation,
        max_pixels=config.max_pixels,
        timeout=config.timeout,
        dtype=tensor.type.dtype.str,
        table=_table(tensor, config, channels),
    )


def _layout(spec: ModelSpec, tensor: TensorSpec, config: ImageConfig, what: str) -> str:
    shape = tensor.shape or ()
    known = (_WITH_ROWS if spec.is_batched else _WITHOUT_ROWS).get(len(shape), ())
    if config.layout:
        if len(config.layout) != len(shape):
            raise ValueError(
                f"[image] layout is {config.layout}, which does not fit {what}"
            )
        return config.layout
    fitting = [
        layout
        for layout in known
        if "C" not in layout or shape[layout.index("C")] in (1, 3)
    ]
    if len(fitting) != 1:
        raise ValueError(
            "[image] needs layout = one of "
            f"{', '.join(known) or 'NCHW, NHWC'}, because the shape of {what} "
            "does not show it"
        )
    return fitting[0]


def _table(tensor: TensorSpec, config: ImageConfig, channels: int) -> bytes:
    """Return the value of each shade, channel by channel. Raises ValueError for values
    that the datatype does not have."""
    is_float = tensor.type.kind == "f"
    shades = np.arange(256, dtype=np.float64)
    if config.scale is not None:
        shades = shades * config.scale
    elif is_float:
        shades = shades / 255
    mean = np.resize(np.array(config.mean), channels)
    std = np.resize(np.array(config.std), channels)
    table = (shades - mean[:, None]) / std[:, None]
    dtype = tensor.type.dtype
    if not is_float:
        table, info = np.rint(table), np.iinfo(dtype)
        if table.min() < info.min or table.max() > info.max:
            raise ValueError(
                f"[image]: scale, mean and std give values of {table.min():g} to "
                f"{table.max():g}, which {tensor.datatype} does not have"
            )
    return table.astype(dtype).tobytes()
