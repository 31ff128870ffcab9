"""Synthetic values for missing inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from popef_io import DataType

#: Most elements of synthetic data; a higher number is a mistake, such as --batch 1e9.
MAX_ELEMENTS = 1 << 30


def synthetic_array(
    random: np.random.Generator, data_type: DataType, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return synthetic values: normally distributed floats, whole numbers 0 or 1 (which
    are valid indices), or short strings.
    """
    if data_type is DataType.STRING:
        texts = [f"text {n}".encode() for n in range(math.prod(shape))]
        array = np.empty(len(texts), object)
        array[:] = texts
        return array.reshape(shape)
    if data_type is DataType.BF16:
        floats = random.standard_normal(shape).astype(np.float32)
        return (floats.view(np.uint32) >> 16).astype(np.uint16).reshape(shape)
    dtype = data_type.numpy_dtype
    if dtype.kind == "f":
        return np.asarray(random.standard_normal(shape)).astype(dtype)
    return np.asarray(random.integers(0, 2, shape)).astype(dtype)
