"""Seeds of random operators: 64 bits as two words of 32."""

from __future__ import annotations

import numpy as np

from popir.dtypes import Array

MAX_UINT64 = (1 << 64) - 1
MAX_UINT32 = (1 << 32) - 1


def create_seeds(
    seed: int,
    offset: int = 0,
    batches_per_step: int = 1,
    gradient_accumulation_factor: int = 1,
    replicas: int = 1,
) -> Array:
    """Return seeds (uint32) for each batch, accumulation step and replica.

    The shape is (batches, accumulation, replicas, 2) without dimensions of 1; equal
    arguments give equal seeds.
    """
    shape = (batches_per_step, gradient_accumulation_factor, replicas)
    draw = np.random.default_rng(seed + offset)
    words = draw.integers(0, MAX_UINT64, shape, np.uint64, endpoint=True)
    pairs = np.stack([words >> np.uint64(32), words & np.uint64(MAX_UINT32)], axis=-1)
    result: Array = pairs.astype(np.uint32).squeeze()
    return result


def uint64_to_two_uint32(num: int) -> tuple[int, int]:
    """Return the high and the low word of `num`; ValueError out of range."""
    if not 0 <= num <= MAX_UINT64:
        raise ValueError(f"{num} is outside of the range of uint64 (0 to 2^64 - 1)")
    return num >> 32, num & MAX_UINT32


def two_uint32_to_uint64(a: int, b: int) -> int:
    """Return the number of high word `a` and low word `b`; ValueError out of range."""
    for word in (a, b):
        if not 0 <= word <= MAX_UINT32:
            raise ValueError(f"{word} is outside of the range of uint32 (0 to 2^32-1)")
    return int(a) << 32 | int(b)
