"""What the members of a group have after a collective, in NumPy.

Sums go from the first member to the last. float16 is summed in float32 and rounded
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from popir.dtypes import AnyDtype, Array, Shape
from popir.grouping import Kind
from popir.shards import joined, shard

_FOLDS: dict[str, Callable[[Array, Array], Array]] = {
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
}


def exchanged(
    what: Kind, op: str, axis: int, shape: Shape, values: Sequence[Array]
) -> list[Array]:
    """Return for each member what it has then, of `values` in the group's order.

    op: how they are reduced. shape: of each result.
    """
    count = len(values)
    match what:
        case "reduce":
            return [reduced(op, values)] * count
        case "gather":
            return [joined(values, shape)] * count
        case "concat":
            total = np.concatenate(values, axis)
            return [total.reshape(shape)] * count
        case "scatter":
            total = reduced(op, values)
            return [shard(total, count, rank) for rank in range(count)]
        case "shard":
            return [shard(v, count, rank) for rank, v in enumerate(values)]
        case "slice":
            blocks = [np.split(v, count, axis)[r] for r, v in enumerate(values)]
            made = [np.ascontiguousarray(block) for block in blocks]
            return [each.reshape(shape) for each in made]


def reduced(op: str, values: Sequence[Array]) -> Array:
    """Return `values` reduced: `mul` stands for the mean, as in the original."""
    dtype = values[0].dtype
    if op in _FOLDS:
        return np.asarray(reduce(_FOLDS[op], values)).astype(dtype, copy=False)
    wide = _wide(dtype)
    given = [v.astype(wide, copy=False) for v in values]
    if op == "square_add":
        given = [v * v for v in given]
    total = np.asarray(reduce(np.add, given))
    if op in ("mean", "mul"):
        if dtype.kind in "iu":
            # Towards zero, as all integers are divided here.
            total = np.sign(total) * (np.abs(total) // len(values))
        else:
            total = total / wide.type(len(values))
    return np.asarray(total).astype(dtype, copy=False)


def _wide(dtype: AnyDtype) -> AnyDtype:
    return np.dtype(np.float32) if dtype == np.float16 else dtype
