"""Cut arrays along one dimension, complete them with zeros, and free them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine.tensor import Array
from engine.thread_priority import give_way
from popef_io import is_alone

#: Strings that are freed at a time.
_BLOCK: Final = 4_096


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


def free_strings(arrays: dict[Any, Array]) -> None:
    """Take out all arrays, and free the strings of large ones in blocks.

    Python frees a million strings in one go (20 ms) if their array ends as a whole. An
    array that something else refers to keeps its strings.
    """
    while arrays:
        one = [arrays.popitem()[1]]
        if one[0].dtype.hasobject and one[0].size > _BLOCK and is_alone(one):
            flat = one[0].reshape(-1)
            for begin in range(0, flat.size, _BLOCK):
                flat[begin : begin + _BLOCK] = None
                give_way()
