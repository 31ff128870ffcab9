"""Shards: equal parts of the elements of an array, in row-major order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from popir.dtypes import Array


def shard_size(elements: int, members: int) -> int:
    """Elements of each of so many shards."""
    return -(-elements // members)


def shard(whole: Array, count: int, rank: int) -> Array:
    """Return the shard `rank` of `count`, in row-major order, padded with zeros."""
    flat = whole.reshape(-1)
    size = shard_size(flat.size, count)
    part = flat[rank * size : (rank + 1) * size]
    if part.size == size:
        return part
    return np.concatenate([part, np.zeros(size - part.size, flat.dtype)])


def joined(shards: Sequence[Array], shape: tuple[int, ...]) -> Array:
    """Return what was cut into `shards`."""
    flat = np.concatenate([each.reshape(-1) for each in shards])
    return flat[: prod(shape)].reshape(shape)
