"""The 8-bit formats, bit for bit beside those of ml_dtypes.

Covers: plugins/popxl/src/popir/float8.py, plugins/popxl/src/popir/dtypes.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from popir import DTYPES, DType, best_scale, decode, dtype_of, encode

FORMATS: list[tuple[DType, Any]] = [
    (dtype_of([("float8_143", "u1")]), ml_dtypes.float8_e4m3fnuz),
    (dtype_of([("float8_152", "u1")]), ml_dtypes.float8_e5m2fnuz),
]


@pytest.mark.parametrize(("dtype", "theirs"), FORMATS)
def test_codes_are_those_of_ml_dtypes(dtype: DType, theirs: Any) -> None:
    codes = np.arange(256, dtype=np.uint8)
    values = codes.view(theirs).astype(np.float32)
    np.testing.assert_array_equal(decode(codes, dtype), values)
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=20000) * np.exp2(rng.integers(-20, 18, 20000))
    # Also what lies just between two values, and what is no number.
    halves = (np.sort(values[:128])[:-1] + np.sort(values[:128])[1:]) / 2
    source = np.concatenate([drawn, values, halves, [np.inf, -np.inf, np.nan, 0.0]])
    expected = source.astype(np.float32).astype(theirs).view(np.uint8)
    np.testing.assert_array_equal(encode(source.astype(np.float32), dtype), expected)


@pytest.mark.parametrize(("dtype", "_"), FORMATS)
def test_what_is_too_large_is_nan_or_the_largest(dtype: DType, _: Any) -> None:
    large = np.array([1e6, -1e6, np.inf])
    assert encode(large, dtype).tolist() == [0x80] * 3
    assert encode(large, dtype, 0, False).tolist() == [0x7F, 0xFF, 0x80]


@pytest.mark.parametrize(("dtype", "_"), FORMATS)
def test_a_scale_is_undone_by_its_negative(dtype: DType, _: Any) -> None:
    values = np.array([3.0, 0.25, -96.0, 1.5])
    for scale in (-4, 0, 1):
        there = encode(values, dtype, scale)
        np.testing.assert_array_equal(decode(there, dtype, -scale), values)


def test_the_best_scale_centres_the_values() -> None:
    for (dtype, _), span in zip(
        FORMATS, [(0.00098, 240), (2**-17, 57344)], strict=True
    ):
        assert best_scale(np.array(span), dtype)[1] == 0
        assert best_scale(np.linspace(33, 63, 50), dtype)[1] < 0
        assert best_scale(np.linspace(0.016, 0.031, 50), dtype)[1] > 0


def test_types_know_what_they_are() -> None:
    kinds = {d.name: (d.is_int, d.is_float, d.is_complex, d.is_signed) for d in DTYPES}
    assert kinds["bool"] == (False, False, False, False)
    assert kinds["uint8"] == (True, False, False, False)
    assert kinds["int64"] == (True, False, False, True)
    assert kinds["float8_143"] == (False, True, False, True)
    assert kinds["complex64"] == (False, False, True, True)
    with pytest.raises(ValueError, match="no data type"):
        dtype_of("S3")
