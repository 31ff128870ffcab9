"""float8 on the host: casts, and the scale with the smallest loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import popir
from popxl import dtypes

_FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


def _array(src: Any) -> np.ndarray[Any, Any]:
    if hasattr(src, "detach"):  # a torch tensor
        src = src.detach().cpu().numpy()
    return np.asarray(src)


def host_pow2scale_cast_to_fp8(
    src: Any,
    dtype: dtypes.dtype | None = None,
    log2_scale: int | None = 0,
    nan_on_overflow: bool | None = True,
) -> np.ndarray[Any, Any]:
    """Return `src` times 2^`log2_scale` in a float8 format, as a structured array."""
    if dtype not in (dtypes.float8_143, dtypes.float8_152) or dtype is None:
        raise RuntimeError(f"dtype must be a float8 type, not {dtype}")
    array = _array(src)
    if array.dtype not in _FLOATS and not isinstance(src, list | tuple):
        raise RuntimeError(f"only floats can be cast to {dtype}, not {array.dtype}")
    overflow = True if nan_on_overflow is None else nan_on_overflow
    codes = popir.encode(array, dtype._below, log2_scale or 0, overflow)
    return np.ascontiguousarray(codes).view(dtype.as_numpy()).reshape(array.shape)


def host_pow2scale_cast_from_fp8(
    src: np.ndarray[Any, Any],
    dtype: dtypes.dtype | None = None,
    log2_scale: int | None = 0,
) -> np.ndarray[Any, Any]:
    """Return the values of a float8 array, times 2^`log2_scale` after the cast."""
    if dtype not in (dtypes.float16, dtypes.float32, dtypes.float64) or dtype is None:
        raise RuntimeError(f"dtype must be float16, float32 or float64, not {dtype}")
    array = np.ascontiguousarray(src)
    source = dtypes._NP_TO_POPXL.get(array.dtype)
    if source not in (dtypes.float8_143, dtypes.float8_152) or source is None:
        raise RuntimeError(f"the source must be of a float8 type, not {array.dtype}")
    codes = array.view(np.uint8).reshape(np.shape(src))
    values = popir.decode(codes, source._below, log2_scale or 0)
    return np.asarray(values).astype(dtype.as_numpy())


def host_fp8_mse_scale(
    src: Any, dtype: dtypes.dtype | None = None
) -> tuple[float, int]:
    """Return an estimate of the loss, and the scale with the smallest loss."""
    array = _array(src)
    if array.dtype not in _FLOATS[:2]:
        raise RuntimeError(f"the source must be float16 or float32, not {array.dtype}")
    to = dtypes.float8_152 if dtype is dtypes.float8_152 else dtypes.float8_143
    return popir.best_scale(array, to._below)


def host_fp8_mse_scale_pb(src: Any, dtype: dtypes.dtype | None = None) -> int:
    """Return the scale with the smallest loss, from -31 to 31."""
    return host_fp8_mse_scale(src, dtype)[1]


host_pow2scale_then_cast = host_pow2scale_cast_to_fp8
host_cast_then_pow2scale = host_pow2scale_cast_from_fp8

#: The scales that `host_fp8_mse_scale` tries.
min_scaling_bias, max_scaling_bias = -31, 31


@dataclass(frozen=True)
class FpDef:
    """A floating point format: bits of exponent and mantissa, and the bias."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    has_infinities: bool = False


ieee_float16_def = FpDef(5, 10, 15, has_infinities=True)
ieee_float32_def = FpDef(8, 23, 127, has_infinities=True)
float8_143_def = FpDef(4, 3, 8)
float8_152_def = FpDef(5, 2, 16)


def find_exponential_range(definition: FpDef) -> tuple[int, int]:
    """Return the exponents of the smallest subnormal and of the largest value."""
    codes = 2**definition.exponent_bits - (2 if definition.has_infinities else 1)
    least = 1 - definition.bias - definition.mantissa_bits
    return least, codes - definition.bias


def log_histogram(src: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the binary exponents of the values, and how often each occurs."""
    return popir.exponents_of(_array(src))


@dataclass(frozen=True)
class CandidateConfig:
    """A format and a scale to try."""

    dtype: dtypes.dtype
    log2_scale: int = 0


def calculate_candidate_metric(
    histogram: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
    candidate: CandidateConfig,
) -> float:
    """Return an estimate of the squared error of a format and a scale."""
    below = candidate.dtype._below
    return popir.loss_of(*histogram, below, candidate.log2_scale)


def calculate_metric_mse(
    src: Any, dtype: dtypes.dtype | None = None, log2_scale: int = 0
) -> float:
    """Return an estimate of the squared error of `src` times 2^log2_scale."""
    to = dtypes.float8_152 if dtype is dtypes.float8_152 else dtypes.float8_143
    return calculate_candidate_metric(
        log_histogram(src), CandidateConfig(to, log2_scale)
    )
