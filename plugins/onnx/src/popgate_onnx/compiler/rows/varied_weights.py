"""Other values for weights, in which all elements differ.

A weight whose elements are all equal treats all rows alike, whatever the graph does
with it. A user may replace the weight later, and new values may treat rows differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.tensor import Array
from popef_io import DataType
from popgate_onnx.compiler.weights import Weight


def varied(weights: Sequence[Weight], seed: int) -> list[Weight]:
    """Return the weights with other values. The same seed gives the same values."""
    random = np.random.default_rng(seed)
    return [replace(w, data=_varied(w, random)) for w in weights]


def _varied(weight: Weight, random: np.random.Generator) -> Array:
    """Return each number multiplied by a factor from one half to one and a half, so
    that the model still works; zeros become small.

    Integers stay within their range.
    """
    data = weight.data
    if not data.size or data.dtype.hasobject:
        return data
    if weight.info.data_type is DataType.BF16:
        wide = (data.astype(np.uint32) << 16).view(np.float32)
        bits = _around(wide, random).astype(np.float32).view(np.uint32)
        return (bits >> 16).astype(np.uint16)
    if data.dtype.kind == "f":
        return _around(data, random).astype(data.dtype)
    if data.dtype.kind == "b":
        return random.integers(0, 2, data.shape).astype(data.dtype)
    if data.dtype.kind in "iu":
        low, high = int(data.min()), int(data.max())
        high += low == high  # all elements are equal
        return random.integers(low, high, data.shape, data.dtype, endpoint=True)
    return data


def _around(data: Array, random: np.random.Generator) -> Array:
    finite = np.abs(data[np.isfinite(data)], dtype=np.float64)
    scale = float(finite.max()) if finite.size else 0.0
    zero = 1e-2 * scale if scale else 1.0
    return np.where(data == 0, zero, data) * random.uniform(0.5, 1.5, data.shape)
