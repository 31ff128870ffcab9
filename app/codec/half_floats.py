"""FP16 and BF16 as numbers: shortest decimals out, round to nearest even in.

The shortest decimal has the fewest digits that read back as the same value. The JSON
writer does the same for FP32 and FP64. Both types have 65536 values, so each decimal is
computed once, at its first use.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_EXPONENT_BF16 = 0x7F80


class Shortest(dict[int, bytes]):
    """Decimals by bit pattern, filled on first use (65536 at most)."""

    def __init__(self, decimal: Callable[[int], str]) -> None:
        super().__init__()
        self._decimal = decimal

    def __missing__(self, bits: int) -> bytes:
        text = self[bits] = self._decimal(bits).encode()
        return text

    def join(self, bits: Iterable[int]) -> bytes:
        """Return the JSON list of the values with these bits; non-finite ones
        are null.
        """
        return b"[" + b",".join(map(self.__getitem__, bits)) + b"]"


def _decimal_fp16(bits: int) -> str:
    value = np.uint16(bits).view(np.float16)
    return str(value) if np.isfinite(value) else "null"


def _decimal_bf16(bits: int) -> str:
    if bits & _EXPONENT_BF16 == _EXPONENT_BF16:
        return "null"
    magnitude = bits & 0x7FFF
    value = _magnitude(magnitude)
    # Any decimal between the midpoints to both neighbours reads back as this value. The
    # midpoints do so too if the value is even.
    step_down = value - _magnitude(magnitude - 1) if magnitude else 0.0
    step_up = _magnitude(magnitude + 1) - value
    low = value - step_down / 2
    high = value + (step_down if math.isinf(step_up) else step_up) / 2
    is_even = not magnitude & 1
    shortest = value
    for digits in range(4):
        shortest = float(f"{value:.{digits}e}")
        if low < shortest < high or (is_even and low <= shortest <= high):
            break
    return repr(math.copysign(shortest, -1.0 if bits & 0x8000 else 1.0))


def _magnitude(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return value


FP16 = Shortest(_decimal_fp16)
BF16 = Shortest(_decimal_bf16)


def round_to_bf16(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Return the BF16 bits nearest to `values`, ties to even; values that are too large
    become infinity.

    Converting by way of float32 would round twice and could be off by one. Therefore
    the value is first rounded to float32 with an odd last bit. That bit keeps the side
    of a tie on which the value was.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
        back = single.astype(np.float64)
        bits = single.view(np.uint32)
        finite = np.isfinite(back)
        too_far = finite & (np.abs(back) > np.abs(values))
        inexact = finite & (back != values)
    bits = (bits - too_far) | inexact
    # Add half of the last place that is kept, less one if that place is even.
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    halves: npt.NDArray[np.uint16] = (rounded >> np.uint32(16)).astype(np.uint16)
    # Rounding must not carry a NaN's payload over into the sign.
    halves[np.isnan(values)] = 0x7FC0
    return halves


def pack_bf16(values: Sequence[Any]) -> bytes:
    """Pack numbers as BF16 bytes. Raises OverflowError if a finite one is too large.

    Raises the error of `struct` for values that are not numbers.
    """
    doubles = np.frombuffer(struct.pack(f"<{len(values)}d", *values), "<f8")
    halves = round_to_bf16(doubles)
    if (np.isinf(unpack_bf16(halves)) & np.isfinite(doubles)).any():
        raise OverflowError("float too large to pack as BF16")
    return halves.tobytes()


def unpack_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the values of BF16 bits, exactly."""
    shifted: npt.NDArray[np.uint32] = bits.astype(np.uint32) << np.uint32(16)
    return shifted.view(np.float32)
