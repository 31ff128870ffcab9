"""Gathering and scattering."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from popxl.ops.utils import check_inputs, emit
from popxl.tensor import Tensor


def gather(
    t: Tensor,
    indices: Tensor,
    axis: int = 0,
    available_memory_proportion: float | None = None,
    zero_OOR: bool = False,
) -> Tensor:
    """Return the elements at `indices` along `axis`; zero_OOR: zeros for indices out of
    range.
    """
    return _gather("Gather", t, indices, axis, zero_OOR, "gather_out")


def tied_gather(
    t: Tensor,
    indices: Tensor,
    axis: int = 0,
    available_memory_proportion: float | None = None,
    zero_OOR: bool = False,
) -> Tensor:
    """Gather, like `gather`."""
    return _gather("TiedGather", t, indices, axis, zero_OOR, "tiedgather_out")


def _gather(
    type_: str,
    t: Tensor,
    indices: Tensor,
    axis: int,
    zero: bool,
    name: str,
    groups: int = 1,
) -> Tensor:
    attributes = {"axis": axis, "zero_out_of_range": zero, "groups": groups}
    return emit(type_, {"t": t, "indices": indices}, [name], attributes)[0]


def groupedgather(
    t: Tensor,
    indices: Tensor,
    axis: int = 0,
    group_size: int = 1,
    available_memory_proportion: float | None = None,
    zero_OOR: bool = False,
) -> Tensor:
    """Gather by groups: several groups lead both tensors, and each has its own
    elements.
    """
    return _gather("Gather", t, indices, axis, zero_OOR, "gather_out", group_size)


def scatter(
    t: Tensor,
    indices: Tensor,
    values: Tensor,
    axis: int = 0,
    available_memory_proportion: float | None = None,
) -> Tensor:
    """Return `t` with `values` at `indices` along `axis`."""
    inputs = {"t": t, "indices": indices, "values": values}
    return emit("Scatter", inputs, ["scatter_out"], {"axis": axis})[0]


def onehot(t: Tensor, num_classes: Tensor, values: Tensor, axis: int) -> Tensor:
    """Return values[1] at each index along a new axis, values[0] elsewhere."""
    check_inputs(t=t, num_classes=num_classes, values=values)
    below = num_classes._below
    classes = below.data
    if classes is None or below.kind != "constant" or classes.size != 1:
        raise ValueError("num_classes must be a constant scalar tensor")
    attributes = {"axis": axis, "classes": int(np.reshape(classes, ()))}
    inputs = {"t": t, "values": values}
    return emit("Onehot", inputs, ["onehot_out"], attributes)[0]


def _window(axes: Iterable[int], sizes: Iterable[int]) -> dict[str, tuple[int, ...]]:
    return {"axes": tuple(map(int, axes)), "sizes": tuple(map(int, sizes))}


def dynamic_slice(
    t: Tensor, index: Tensor, axes: list[int], sizes: list[int], no_overlap: bool
) -> Tensor:
    """Return the window of `sizes` that begins at `index` along `axes`."""
    inputs = {"t": t, "index": index}
    name = "dynamic_slice_out"
    return emit("DynamicSlice", inputs, [name], _window(axes, sizes))[0]


def dynamic_update(
    t: Tensor,
    index: Tensor,
    t_update: Tensor,
    axes: list[int],
    sizes: list[int],
    no_overlap: bool,
) -> Tensor:
    """Return `t` with the window replaced by `t_update`."""
    inputs = {"t": t, "index": index, "t_update": t_update}
    name = "dynamic_update_out"
    return emit("DynamicUpdate", inputs, [name], _window(axes, sizes))[0]


def dynamic_update_(
    t: Tensor,
    index: Tensor,
    t_update: Tensor,
    axes: list[int],
    sizes: list[int],
    no_overlap: bool,
) -> Tensor:
    """Replace the window of `t` by `t_update`, in place."""
    inputs = {"t": t, "index": index, "t_update": t_update}
    name = "dynamicupdateinplace_out"
    return emit("DynamicUpdateInplace", inputs, [name], _window(axes, sizes))[0]
