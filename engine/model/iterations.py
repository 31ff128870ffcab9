"""The results of single device iterations, cut out of the results of a request."""

from __future__ import annotations

from collections.abc import Mapping

from engine.arrays import part_of
from engine.model.batch_plan import AnchorRows, BatchPlan
from engine.tensor import Tensor


def split_iterations(
    plan: BatchPlan, outputs: Mapping[str, Tensor]
) -> list[Mapping[str, Tensor]]:
    """Return the outputs of a request, one part for each device iteration.

    An output that a run writes once is in every part. There is only one part if the
    model has one iteration, or if the outputs disagree about the number. Outputs other
    than strings are views if possible.
    """
    cuts = {
        rows.name: _extents(rows, outputs[rows.name], plan.dim)
        for rows in plan.outputs
        if rows.transfers > 1 and rows.name in outputs
    }
    counts = {len(extents) for extents in cuts.values()}
    if len(counts) != 1 or counts <= {0, 1}:
        return [outputs]
    (count,) = counts
    arrays = {name: outputs[name].numpy() for name in cuts}
    parts: list[Mapping[str, Tensor]] = []
    for index in range(count):
        part = dict(outputs)
        for name, extents in cuts.items():
            cut = part_of(arrays[name], plan.dim, *extents[index])
            part[name] = Tensor.from_numpy(cut, outputs[name].data_type)
        parts.append(part)
    return parts


def _extents(rows: AnchorRows, tensor: Tensor, dim: int) -> list[tuple[int, int]]:
    """Return the start and end of each iteration's part along the batch dimension."""
    whole = tensor.shape[dim] if len(tensor.shape) > dim else 0
    size = rows.size if rows.size > 0 else -(-whole // rows.transfers)
    if not whole:
        return []
    return [(start, min(start + size, whole)) for start in range(0, whole, size)]
