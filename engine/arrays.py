"""Cut arrays along one dimension and complete them with zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tensor import Array


def part_of(array: Array, dim: int, start: int, end: int) -> Array:
    """Return `array` from `start` to `end` in dimension `dim`, contiguous."""
    if not dim:
        return array[start:end]
    return np.ascontiguousarray(array[(slice(None),) * dim + (slice(start, end),)])


def padded(array: Array, dim: int, size: int) -> Array:
    """Return `array` with zeros up to `size` in `dim` (the guide's null data)."""
    missing = size - array.shape[dim]
    if missing <= 0:
        return array
    shape = (*array.shape[:dim], missing, *array.shape[dim + 1 :])
    return np.concatenate([array, null_data(shape, array.dtype)], dim)


def null_data(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return zeros, or empty strings."""
    return np.full(shape, b"", dtype) if dtype.hasobject else np.zeros(shape, dtype)
