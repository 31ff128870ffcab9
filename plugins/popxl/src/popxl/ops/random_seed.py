"""Random operators and their seeds."""

from __future__ import annotations

from collections.abc import Iterable

from popxl import dtypes
from popxl.dtypes import dtype
from popxl.ops.utils import check_inputs, emit
from popxl.tensor import Tensor, constant


def create_random_seed(seed: Tensor, modifier: Tensor) -> Tensor:
    """Return another seed, which follows from `seed` and `modifier`."""
    inputs = {"seed": seed, "modifier": modifier}
    return emit("ModifyRandomSeed", inputs, ["modified_seed"])[0]


def split_random_seed(seed: Tensor, n: int = 2) -> tuple[Tensor, ...]:
    """Return `n` seeds that follow from `seed`."""
    check_inputs(seed=seed)
    if seed.shape != (2,) or seed.dtype is not dtypes.uint32:
        raise ValueError(
            f"a seed must be uint32 of shape (2,), found {seed.dtype}{seed.shape}"
        )
    return tuple(
        create_random_seed(seed, constant(number, dtypes.uint32)) for number in range(n)
    )


def dropout(t: Tensor, seed_tensor: Tensor, p: float) -> Tensor:
    """Drop elements with probability `p`, and scale the others by 1 / (1 - p)."""
    inputs = {"t": t, "seed_tensor": seed_tensor}
    return emit("Dropout", inputs, ["dropout_out"], {"ratio": float(p)})[0]


def shaped_dropout(
    t: Tensor, seed_tensor: Tensor, shape: Iterable[int], ratio: float
) -> Tensor:
    """Drop elements by a mask of `shape` that is broadcast."""
    inputs = {"t": t, "seed_tensor": seed_tensor}
    attributes = {"ratio": float(ratio), "shape": tuple(shape)}
    return emit("ShapedDropout", inputs, ["shapeddropout_out"], attributes)[0]


def random_uniform(
    seed_tensor: Tensor,
    shape: Iterable[int],
    low: float = 0.0,
    high: float = 1.0,
    dtype: dtype = dtypes.float32,
) -> Tensor:
    """Return uniform random numbers in [low, high)."""
    attributes = {
        "shape": tuple(shape),
        "dtype": dtype._below,
        "low": float(low),
        "high": float(high),
    }
    inputs = {"seed_tensor": seed_tensor}
    return emit("RandomUniform", inputs, ["random_uniform_out"], attributes)[0]


def random_normal(
    seed_tensor: Tensor,
    shape: Iterable[int],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: dtype = dtypes.float32,
) -> Tensor:
    """Return normally distributed random numbers."""
    attributes = {
        "shape": tuple(shape),
        "dtype": dtype._below,
        "mean": float(mean),
        "std": float(std),
    }
    inputs = {"seed_tensor": seed_tensor}
    return emit("RandomNormal", inputs, ["random_normal_out"], attributes)[0]
