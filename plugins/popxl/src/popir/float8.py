"""The two 8-bit floating point formats: encoding, decoding, the best scale.

    float8_143    1 sign, 4 exponent, 3 mantissa bits, bias 8, largest 240
    float8_152    1 sign, 5 exponent, 2 mantissa bits, bias 16, largest 57344

Code 0x80 is the only NaN; there are no infinities and no negative zero. They are
ONNX's FLOAT8E4M3FNUZ and FLOAT8E5M2FNUZ.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from ml_dtypes import float8_e4m3fnuz, float8_e5m2fnuz

from popir.dtypes import FLOAT8_143, FLOAT8_152, Array, DType

MIN_SCALE, MAX_SCALE = -32, 31
NAN_CODE = 0x80
_MANTISSA = {FLOAT8_143: 3, FLOAT8_152: 2}
_BIAS = {FLOAT8_143: 8, FLOAT8_152: 16}
_TYPES = {FLOAT8_143: float8_e4m3fnuz, FLOAT8_152: float8_e5m2fnuz}


@cache
def decoding_table(dtype: DType) -> Array:
    """Return the float32 value of each of the 256 codes."""
    codes = np.arange(256, dtype=np.uint8)
    table: Array = codes.view(_TYPES[dtype]).astype(np.float32)
    table.flags.writeable = False
    return table


def encode(
    values: Array, dtype: DType, log2_scale: int = 0, nan_on_overflow: bool = True
) -> Array:
    """Return the codes (uint8, same shape) of `values` times 2^log2_scale.

    Rounds to the nearest, ties to even. Values that are too large give NaN, or the
    largest value if not `nan_on_overflow`; infinite values and NaN always give NaN.
    """
    exact = np.asarray(values, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.ldexp(exact, log2_scale)
        codes: Array = scaled.astype(_TYPES[dtype]).view(np.uint8)
    if not nan_on_overflow:
        largest = np.where(exact < 0, 0xFF, NAN_CODE - 1).astype(np.uint8)
        is_too_large = (codes == NAN_CODE) & np.isfinite(exact)
        codes = np.where(is_too_large, largest, codes)
    return codes


def decode(codes: Array, dtype: DType, log2_scale: int = 0) -> Array:
    """Return the float32 values of `codes` (uint8), times 2^log2_scale."""
    result: Array = np.ldexp(decoding_table(dtype)[codes], log2_scale)
    return result


def exponents_of(values: Array) -> tuple[Array, Array]:
    """Return the binary exponents of `values`, and how often each occurs."""
    magnitude = np.abs(np.asarray(values, np.float64).reshape(-1))
    magnitude = magnitude[(magnitude > 0) & np.isfinite(magnitude)]
    exponents = np.frexp(magnitude)[1] - 1
    return np.unique(exponents.clip(-126, 127), return_counts=True)


def exponent_range(dtype: DType) -> tuple[int, int]:
    """Return the exponents of the smallest subnormal and of the largest value."""
    bits, bias = _MANTISSA[dtype], _BIAS[dtype]
    return 1 - bias - bits, int(np.frexp(decoding_table(dtype)[NAN_CODE - 1])[1]) - 1


def loss_of(bins: Array, counts: Array, dtype: DType, scale: int) -> float:
    """Return an estimate of the squared error of values times 2^scale.

    bins, counts: exponents of the values and how often each occurs.
    """
    least, most = exponent_range(dtype)
    centre = np.ldexp(1.0, bins)
    rounding = 2.0 ** (-2 * (23 - _MANTISSA[dtype]))
    limit = np.ldexp(1.0, most - scale)
    loss = np.where(bins + scale < least, centre, centre * rounding)
    loss = np.where(bins + scale > most, np.abs(centre - limit), loss)
    return float((counts * np.square(loss)).sum())


def best_scale(values: Array, dtype: DType) -> tuple[float, int]:
    """Return an estimate of the loss, and the scale (-31 to 31) that loses least of
    `values`.

    The estimate uses the histogram of exponents. A value that is too small is lost. A
    value that is too large becomes the largest. Any other value loses its last bit.
    """
    bins, counts = exponents_of(values)
    if not bins.size:
        return 0.0, 0
    losses = [(loss_of(bins, counts, dtype, n), n) for n in range(-31, 32)]
    metric = min(loss for loss, _ in losses)
    # Take the middle of the best scales, which leaves room for values on both sides.
    best = [scale for loss, scale in losses if loss == metric]
    return metric, best[len(best) // 2]
