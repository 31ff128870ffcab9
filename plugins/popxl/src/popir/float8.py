"""The two 8-bit floating point formats: encoding, decoding, the best scale.

    float8_143    1 sign, 4 exponent, 3 mantissa bits, bias 8, largest 240
    float8_152    1 sign, 5 exponent, 2 mantissa bits, bias 16, largest 57344

Code 0x80 is the only NaN; there are no infinities and no negative zero. They are
ONNX's FLOAT8E4M3FNUZ and FLOAT8E5M2FNUZ.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from popir.dtypes import FLOAT8_143, FLOAT8_152, Array, DType

MIN_SCALE, MAX_SCALE = -32, 31
NAN_CODE = 0x80
_MANTISSA = {FLOAT8_143: 3, FLOAT8_152: 2}
_BIAS = {FLOAT8_143: 8, FLOAT8_152: 16}


@cache
def decoding_table(dtype: DType) -> Array:
    """Return the float32 value of each of the 256 codes."""
    bits, bias = _MANTISSA[dtype], _BIAS[dtype]
    code = np.arange(256)
    exponent = (code & 0x7F) >> bits
    fraction = (code & ((1 << bits) - 1)) / (1 << bits)
    normal = np.ldexp(1.0 + fraction, exponent - bias)
    value = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), normal)
    value = np.where(code & 0x80, -value, value)
    value[NAN_CODE] = np.nan
    table: Array = value.astype(np.float32)
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
    finite = np.isfinite(exact)
    scaled = np.ldexp(np.where(finite, exact, 0.0), log2_scale)
    magnitude = np.abs(scaled)
    positive = decoding_table(dtype)[:NAN_CODE].astype(np.float64)
    # Choose the nearer of the first value that is not smaller, and the one before it.
    above = np.searchsorted(positive, magnitude).clip(1, NAN_CODE - 1)
    low, high = positive[above - 1], positive[above]
    to_low, to_high = magnitude - low, high - magnitude
    is_low = (to_low < to_high) | ((to_low == to_high) & (above % 2 == 1))
    code = np.where(is_low, above - 1, above)
    # At half a step or more beyond the largest value, it would round to a missing
    # value.
    step = positive[-1] - positive[-2]
    too_large = magnitude >= positive[-1] + step / 2
    code = np.where(too_large, NAN_CODE - 1, code)
    code = np.where((scaled < 0) & (code > 0), code | 0x80, code)
    lost = ~finite | (too_large if nan_on_overflow else np.zeros_like(finite))
    result: Array = np.where(lost, NAN_CODE, code).astype(np.uint8)
    return result


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
