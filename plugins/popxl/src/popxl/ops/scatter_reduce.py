"""Scattering that reduces."""

from __future__ import annotations

from typing import Literal

from popxl.ops.utils import emit
from popxl.tensor import Tensor

ScatterReductionType = Literal["sum", "min", "max", "none"]


def scatter_reduce(
    data: Tensor,
    indices: Tensor,
    reduction: ScatterReductionType,
    initial_values: Tensor | None = None,
    axis: int = 0,
    axis_size: int | None = None,
    enable_index_broadcast: bool = True,
    available_memory_proportion: float | None = None,
) -> Tensor:
    """Reduce each row of `data` into the row that `indices` names."""
    return grouped_scatter_reduce(
        data,
        indices,
        reduction,
        initial_values,
        axis,
        axis_size,
        1,
        enable_index_broadcast,
        available_memory_proportion,
    )


def grouped_scatter_reduce(
    data: Tensor,
    indices: Tensor,
    reduction: ScatterReductionType,
    initial_values: Tensor | None = None,
    axis: int = 0,
    axis_size: int | None = None,
    group_size: int = 1,
    enable_index_broadcast: bool = True,
    available_memory_proportion: float | None = None,
) -> Tensor:
    """Scatter and reduce by groups: several groups lead both tensors, each with its own
    rows.
    """
    if reduction not in ("sum", "min", "max", "none"):
        raise ValueError(f"Not a valid reduction: {reduction!r}")
    if initial_values is None and axis_size is None:
        raise ValueError("scatter_reduce needs initial_values or axis_size")
    inputs = {"data": data, "indices": indices}
    if initial_values is not None:
        inputs["initial_values"] = initial_values
        axis_size = axis_size or initial_values.shape[axis]
    attributes = {
        "reduction": reduction,
        "axis": axis,
        "size": axis_size,
        "spread": enable_index_broadcast,
        "groups": group_size,
    }
    return emit("ScatterReduce", inputs, ["scatter_reduce_out"], attributes)[0]
