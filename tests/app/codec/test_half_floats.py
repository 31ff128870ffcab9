"""FP16 and BF16 as numbers."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.codec.half_floats import BF16, FP16, pack_bf16, round_to_bf16, unpack_bf16


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, b"0.1"),
        (1.0, b"1.0"),
        (-0.0, b"-0.0"),
        (3.1415926, b"3.14"),
        (256.0, b"256.0"),
        (1e30, b"1e+30"),
        (float("inf"), b"null"),
        (float("nan"), b"null"),
    ],
)
def test_shortest_bf16(value: float, text: bytes) -> None:
    bits = int(np.array(value, ml_dtypes.bfloat16).view(np.uint16))
    assert BF16[bits] == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, b"0.1"), (1.5, b"1.5"), (6e-8, b"6e-08"), (np.inf, b"null")],
)
def test_shortest_fp16(value: float, text: bytes) -> None:
    assert FP16[int(np.float16(value).view(np.uint16))] == text


def nearest_bf16(value: float) -> int:
    """The bits of the nearest BF16, ties to even, by exact arithmetic."""
    exact = abs(Fraction(value))
    low, high = 0, 0x7F7F
    while low < high:  # the largest that is not above
        middle = (low + high + 1) // 2
        if Fraction(float(unpack_bf16(np.array([middle], np.uint16))[0])) <= exact:
            low = middle
        else:
            high = middle - 1
    below = Fraction(float(unpack_bf16(np.array([low], np.uint16))[0]))
    unit = Fraction(2) ** max(-133, (low >> 7) - 127 - 7 if low >> 7 else -133)
    rest = exact - below
    bits = low + (rest > unit / 2 or (rest == unit / 2 and low & 1))
    return int(bits) | (0x8000 if np.signbit(value) else 0)


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.floats(allow_nan=False, allow_infinity=False, width=64),
        st.floats(-(2.0**127), 2.0**127),
        # Close to the middle between two neighbours, where rounding twice goes wrong.
        st.builds(
            lambda base, tiny: (base + 0.5) / 128 * (1 + tiny * 2.0**-50),
            st.integers(128, 255),
            st.integers(-4, 4),
        ),
    )
)
def test_rounds_to_the_nearest(value: float) -> None:
    got = int(round_to_bf16(np.array([value]))[0])
    assert got == nearest_bf16(value)


def test_too_large_for_bf16() -> None:
    assert len(pack_bf16([3.3895e38])) == 2
    for value in (3.4e38, -1e300):
        with pytest.raises(OverflowError):
            pack_bf16([1.0, value])


def test_special_bf16() -> None:
    bits = np.frombuffer(pack_bf16([float("nan"), float("inf"), float("-inf")]), "<u2")
    assert bits.tolist() == [0x7FC0, 0x7F80, 0xFF80]
    assert pack_bf16([]) == b""
