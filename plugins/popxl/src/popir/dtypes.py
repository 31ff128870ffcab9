"""Types of elements in graphs, and their form on host and device.

The float8 types have no counterpart in numpy or ONNX Runtime's kernels. On the host
they are structured arrays of one byte, on a device the same byte as uint8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
AnyDtype: TypeAlias = np.dtype[Any]
Shape: TypeAlias = tuple[int, ...]

#: One byte each; the field's name tells them apart.
NP_FLOAT8_143: AnyDtype = np.dtype([("float8_143", "u1")])
NP_FLOAT8_152: AnyDtype = np.dtype([("float8_152", "u1")])


@dataclass(frozen=True, slots=True)
class DType:
    """A type of elements. One instance each: compare with `is`."""

    name: str
    numpy: AnyDtype
    """The numpy type of an element on the host."""
    carrier: AnyDtype
    """The numpy type of an element on a device."""

    @property
    def is_float8(self) -> bool:
        """Return whether it is one of the two 8-bit formats."""
        return self.numpy.names is not None

    @property
    def is_int(self) -> bool:
        """Return whether it is an integer; bool is not."""
        return self.numpy.kind in "iu"

    @property
    def is_float(self) -> bool:
        """Return whether it is a floating point type, float8 included."""
        return self.numpy.kind == "f" or self.is_float8

    @property
    def is_complex(self) -> bool:
        """Return whether it is complex; devices have no complex type."""
        return self.numpy.kind == "c"

    @property
    def is_signed(self) -> bool:
        """Return whether it has negative values."""
        return self.numpy.kind in "ifc" or self.is_float8

    def __repr__(self) -> str:
        return self.name


def _plain(name: str) -> DType:
    return DType(name, np.dtype(name), np.dtype(name))


_U1 = np.dtype(np.uint8)
BOOL = _plain("bool")
INT8 = _plain("int8")
INT16 = _plain("int16")
INT32 = _plain("int32")
INT64 = _plain("int64")
UINT8 = _plain("uint8")
UINT16 = _plain("uint16")
UINT32 = _plain("uint32")
UINT64 = _plain("uint64")
FLOAT8_143 = DType("float8_143", NP_FLOAT8_143, _U1)
FLOAT8_152 = DType("float8_152", NP_FLOAT8_152, _U1)
FLOAT16 = _plain("float16")
FLOAT32 = _plain("float32")
FLOAT64 = _plain("float64")
COMPLEX64 = _plain("complex64")
COMPLEX128 = _plain("complex128")

DTYPES: tuple[DType, ...] = (
    *(BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64),
    *(FLOAT8_143, FLOAT8_152, FLOAT16, FLOAT32, FLOAT64, COMPLEX64, COMPLEX128),
)
_BY_NUMPY = {each.numpy: each for each in DTYPES}


def dtype_of(dtype: npt.DTypeLike) -> DType:
    """Return the type for numpy's `dtype`; ValueError for others."""
    found = _BY_NUMPY.get(np.dtype(dtype))
    if found is None:
        raise ValueError(f"there is no data type for numpy's {np.dtype(dtype)}")
    return found


def to_carrier(array: Array) -> Array:
    """Return `array` in the device's form: float8 as its bytes, without a copy."""
    return array.view(np.uint8) if array.dtype.names else array
