"""Results of a collective for the members of a group, in NumPy.

Sums go from the first member to the last. float16 is summed in float32 and rounded
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from popir.dtypes import AnyDtype, Array, Shape
from popir.grouping import Kind, joined, shard
from popir.thread_pool import ALONE, ThreadPool

#: Elements that are reduced at once.
BLOCK = 1 << 15
#: The fewest elements for which a thread saves time.
SHARE = 1 << 16
_FOLDS: dict[str, Callable[[Array, Array], Array]] = {
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
}


def exchanged(
    what: Kind,
    op: str,
    axis: int,
    shape: Shape,
    values: Sequence[Array],
    pool: ThreadPool = ALONE,
    is_free: bool = False,
) -> list[Array]:
    """Return the result of each member from `values` in the group's order.

    op: the reduction. shape: of each result. pool: shares large sums. is_free: the
    sum may overwrite the first value.
    """
    count = len(values)
    match what:
        case "reduce" | "scatter":
            flags = values[0].flags
            in_place = is_free and flags.writeable and flags.c_contiguous
            total = reduced(op, values, values[0] if in_place else None, pool)
            return [from_total(what, total, count, rank) for rank in range(count)]
        case "gather":
            return [joined(values, shape)] * count
        case "concat":
            total = np.concatenate(values, axis)
            return [total.reshape(shape)] * count
        case "shard":
            return [shard(v, count, rank) for rank, v in enumerate(values)]
        case "slice":
            blocks = [np.split(v, count, axis)[r] for r, v in enumerate(values)]
            made = [np.ascontiguousarray(block) for block in blocks]
            return [each.reshape(shape) for each in made]


def from_total(what: Kind, total: Array, count: int, rank: int) -> Array:
    """Return the part of the member `rank` of `count` in a total."""
    return shard(total, count, rank) if what == "scatter" else total


def reduced(
    op: str, values: Sequence[Array], out: Array | None = None, pool: ThreadPool = ALONE
) -> Array:
    """Return `values` reduced; `mul` is the mean, as in the original.

    out: target, perhaps the first value; default: a new array. Large values are reduced
    block by block, so the blocks stay in the cache of a core.
    """
    total = np.empty_like(values[0], order="C") if out is None else out
    flat = [np.ascontiguousarray(v).reshape(-1) for v in values]
    into = total.reshape(-1)

    def reduce(part: slice) -> None:
        for start in range(part.start, part.stop, BLOCK):
            block = slice(start, min(start + BLOCK, part.stop))
            _reduce_block(op, [v[block] for v in flat], into[block])

    count = min(pool.count, into.size // SHARE) or 1
    ends = [into.size * n // count for n in range(count + 1)]
    pool.each(reduce, [slice(a, b) for a, b in pairwise(ends)])
    return total


def _reduce_block(op: str, values: Sequence[Array], out: Array) -> None:
    dtype = out.dtype
    if op in _FOLDS:
        out[...] = values[0]
        for value in values[1:]:
            out[...] = _FOLDS[op](out, value)
        return
    wide = _wide(dtype)
    total = out if wide == dtype else np.empty(out.shape, wide)
    given = [value.astype(wide, copy=False) for value in values]
    if op == "square_add":
        given = [value * value for value in given]
    if len(given) == 1:
        total[...] = given[0]
    else:
        np.add(given[0], given[1], out=total)
    for value in given[2:]:
        np.add(total, value, out=total)
    if op in ("mean", "mul"):
        if dtype.kind in "iu":
            # Round towards zero, like all integer divisions here.
            total[...] = np.sign(total) * (np.abs(total) // len(values))
        elif len(values) & (len(values) - 1) == 0:
            # For a power of two this gives the same bits, and is faster.
            np.multiply(total, wide.type(1 / len(values)), out=total)
        else:
            np.divide(total, wide.type(len(values)), out=total)
    if total is not out:
        out[...] = total


def _wide(dtype: AnyDtype) -> AnyDtype:
    return np.dtype(np.float32) if dtype == np.float16 else dtype
