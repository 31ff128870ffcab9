"""`tensor[...]`."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from popxl import dtypes
from popxl.ops.elementwise import where
from popxl.ops.indexing import gather
from popxl.ops.shapes import slice as slice_op
from popxl.ops.shapes import squeeze, subsample
from popxl.tensor import Tensor, constant


def index(t: Tensor, key: Any) -> Tensor:
    """Return `t[key]`."""
    if isinstance(key, Tensor):
        return _by_tensor(t, key)
    if isinstance(key, np.ndarray | list):
        array = np.asarray(key)
        if array.dtype.kind not in "iub":
            raise TypeError(f"Indices must be integers or bool, not {array.dtype}")
        return _by_tensor(t, constant(array))
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) > t.rank:
        raise IndexError(f"{len(parts)} indices for a tensor of rank {t.rank}")
    return _by_slices(t, parts)


def _by_tensor(t: Tensor, key: Tensor) -> Tensor:
    if key.dtype is dtypes.bool:
        return where(key, t, constant(0, t.dtype))
    if not key.dtype.is_int:
        raise TypeError(f"Indices must be integers or bool, not {key.dtype}")
    return gather(t, key)


def _by_slices(t: Tensor, parts: tuple[Any, ...]) -> Tensor:
    starts: list[int | None] = []
    stops: list[int | None] = []
    steps: list[int | None] = []
    strides: list[int] = []
    dropped: list[int] = []
    for axis, part in enumerate(parts):
        if isinstance(part, bool | np.bool_):
            raise TypeError("A bool is not an index; use an array of bools")
        if isinstance(part, slice):
            step = 1 if part.step is None else operator.index(part.step)
            if not step:
                raise ValueError("The step of a slice cannot be zero")
            starts.append(part.start)
            stops.append(part.stop)
            steps.append(-1 if step < 0 else 1)
            strides.append(abs(step))
            continue
        if part is None or not hasattr(part, "__index__"):
            raise TypeError(
                "Indices must be integers, slices, tensors or arrays, not "
                f"{type(part).__name__}"
            )
        at, size = operator.index(part), t.shape[axis]
        if not -size <= at < size:
            raise IndexError(f"index {at} is beyond the {size} elements of axis {axis}")
        at %= size
        starts.append(at)
        stops.append(at + 1)
        steps.append(1)
        strides.append(1)
        dropped.append(axis)
    result = slice_op(t, starts, stops, steps)
    if any(each > 1 for each in strides):
        result = subsample(result, strides)
    return squeeze(result, dropped) if dropped else result
