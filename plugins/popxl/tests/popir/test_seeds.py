"""Seeds: words, and what they are drawn from."""

from __future__ import annotations

import numpy as np
import pytest

from popir import MAX_UINT64, create_seeds, two_uint32_to_uint64, uint64_to_two_uint32


def test_words_lead_back() -> None:
    for number in (0, 1, 1 << 32, MAX_UINT64):
        assert two_uint32_to_uint64(*uint64_to_two_uint32(number)) == number
    for wrong in (-1, MAX_UINT64 + 1):
        with pytest.raises(ValueError, match="range of uint64"):
            uint64_to_two_uint32(wrong)
    with pytest.raises(ValueError, match="range of uint32"):
        two_uint32_to_uint64(0, 1 << 32)


def test_seeds_are_those_of_numpy() -> None:
    drawn = np.random.default_rng(12).integers(
        0, MAX_UINT64, (2, 1, 3), np.uint64, endpoint=True
    )
    seeds = create_seeds(5, 7, 2, 1, 3)
    assert seeds.shape == (2, 3, 2)
    assert seeds.dtype == np.uint32
    assert two_uint32_to_uint64(*map(int, seeds[1, 2])) == drawn[1, 0, 2]
    assert create_seeds(5).shape == (2,)
