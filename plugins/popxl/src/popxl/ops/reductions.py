"""Reductions and order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from popxl.ops.utils import axes, emit
from popxl.tensor import Tensor, constant

_Axis = int | Iterable[int] | None


def _reduction(name: str, type_: str, words: str) -> Callable[..., Tensor]:
    def operator(t: Tensor, axis: _Axis = None, keepdims: bool = False) -> Tensor:
        attributes = {"axes": axes(axis), "keepdims": keepdims}
        return emit(type_, {"t": t}, [f"{name}_out"], attributes)[0]

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = words
    return operator


sum = _reduction("sum", "ReduceSum", "The sum over `axis` (None: all).")
mean = _reduction("mean", "ReduceMean", "The mean over `axis`.")
max = _reduction("max", "ReduceMax", "The largest over `axis`.")
min = _reduction("min", "ReduceMin", "The smallest over `axis`.")
prod = _reduction("prod", "ReduceProd", "The product over `axis`.")
l1 = _reduction("l1", "ReduceL1", "The sum of absolute values over `axis`.")
l2 = _reduction("l2", "ReduceL2", "The Euclidean norm over `axis`.")
logsum = _reduction("logsum", "ReduceLogSum", "The logarithm of the sum.")
logsumexp = _reduction("logsumexp", "ReduceLogSumExp", "log(sum(exp(t))).")
sumsquare = _reduction("sumsquare", "ReduceSumSquare", "The sum of squares.")


def median(t: Tensor, axis: _Axis = None, keepdims: bool = False) -> Tensor:
    """Return the lower median over all of `axis` together."""
    attributes = {"axes": axes(axis), "keepdims": keepdims}
    names = ["median_out", "median_indices_out"]
    return emit("ReduceMedian", {"t": t}, names, attributes)[0]


def argmax(t: Tensor, dim: int = 0, keepdim: bool = False) -> Tensor:
    """Return the position of the largest, as int32."""
    attributes = {"dim": dim, "keepdim": keepdim}
    return emit("ArgMax", {"t": t}, ["argmax_out"], attributes)[0]


def argmin(t: Tensor, dim: int = 0, keepdim: bool = False) -> Tensor:
    """Return the position of the smallest, as int32."""
    attributes = {"dim": dim, "keepdim": keepdim}
    return emit("ArgMin", {"t": t}, ["argmin_out"], attributes)[0]


def topk(
    t: Tensor,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    available_memory_proportion: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the `k` largest or smallest along `axis`, and where they are (int32)."""
    attributes = {"k": k, "axis": axis, "largest": largest, "sorted": sorted}
    names = ["topk_out_value", "topk_out_indices"]
    values, indices = emit("TopK", {"t": t}, names, attributes)
    return values, indices


def cumsum(t: Tensor, dim: int = 0) -> Tensor:
    """Return the sums of all elements up to each one along `dim`."""
    axis = constant(np.array(dim, np.int64), name="dim", downcast=False)
    return emit("CumSum", {"t": t, "dim": axis}, ["cumsum_out"], {"dim": dim})[0]


def histogram(t: Tensor, levels: Sequence[float], absolute_of_input: bool) -> Tensor:
    """Count the elements below, between and above the levels (uint32)."""
    bounds = [float(each) for each in levels]
    if not all(a < b for a, b in pairwise(bounds)):  # NaN is no level
        raise ValueError(f"levels must be strictly increasing, found {bounds}")
    attributes = {"levels": bounds, "absolute": absolute_of_input}
    return emit("Histogram", {"t": t}, ["histogram_out"], attributes)[0]


def lamb_square(t: Tensor) -> Tensor:
    """Return the sum of squares as float32."""
    return emit("LambSquare", {"t": t}, ["lamb_square_out"])[0]
