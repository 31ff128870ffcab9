"""The enumerations of PopEF: kinds of blobs, of tensors, of elements.

Names and order are those of the PopEF User Guide (section 5.1); the numbers are what
our files hold, see docs/format.md.
"""

from __future__ import annotations

import sys
from enum import Enum

import numpy as np

from popef_io.errors import InvalidValueError


class BlobType(Enum):
    """What a blob holds (PopEF User Guide 2.1)."""

    POPLAR_EXECUTABLE = 0
    METADATA = 1
    DATA_TENSOR = 2
    DATA_FEED = 3
    OPAQUE = 4


class TensorType(Enum):
    """Direction of an anchor, seen from the model: INPUT is host to device."""

    UNKNOWN = 0
    INPUT = 1
    OUTPUT = 2


class DataType(Enum):
    """Type of one tensor element.

    BF16 and STRING are additions of ours; their numbers leave room for PopEF's own.
    F8, F8143 and F8152 have no numpy type and travel as uint8, BF16 as uint16 carrying
    the bits.  A STRING element is a 4-byte little-endian length and as many bytes.
    """

    _value_: int
    item_size: int
    """Bytes of one element; 0 for STRING, whose elements vary."""
    numpy_dtype: np.dtype[np.generic]
    """The numpy type that carries an element: `object` (of bytes) for STRING."""

    BOOL = 0, 1, "?"
    F8 = 1, 1, "u1"
    F16 = 2, 2, "<f2"
    F32 = 3, 4, "<f4"
    F64 = 4, 8, "<f8"
    S8 = 5, 1, "i1"
    U8 = 6, 1, "u1"
    S16 = 7, 2, "<i2"
    U16 = 8, 2, "<u2"
    S32 = 9, 4, "<i4"
    U32 = 10, 4, "<u4"
    S64 = 11, 8, "<i8"
    U64 = 12, 8, "<u8"
    F8143 = 13, 1, "u1"
    F8152 = 14, 1, "u1"
    BF16 = 64, 2, "<u2"
    STRING = 65, 0, "O"

    def __new__(cls, number: int, item_size: int, dtype: str) -> DataType:
        member = object.__new__(cls)
        member._value_ = number
        member.item_size = item_size
        member.numpy_dtype = np.dtype(dtype)
        return member

    @classmethod
    def from_numpy(cls, dtype: np.dtype[np.generic] | type | str) -> DataType:
        """The data type of arrays of `dtype`; object, bytes and text give STRING.

        Raises InvalidValueError for a type that has no counterpart (complex, dates)
        and for numbers in the other byte order.
        """
        wanted = np.dtype(dtype)
        if wanted.kind in "OSU":
            return cls.STRING
        if wanted.name == "bfloat16":
            return cls.BF16
        found = _BY_KIND_AND_SIZE.get((wanted.kind, wanted.itemsize))
        if found is None:
            raise InvalidValueError(f"numpy type {wanted} has no PopEF data type")
        if wanted.byteorder == _FOREIGN_ORDER:
            raise InvalidValueError(
                f"numpy type {wanted} is not in this machine's byte order; "
                "convert with .astype() first"
            )
        return found


_FOREIGN_ORDER = ">" if sys.byteorder == "little" else "<"

_BY_KIND_AND_SIZE = {
    (member.numpy_dtype.kind, member.item_size): member
    for member in DataType
    if member.name[0] in "BSU" or member.name in {"F16", "F32", "F64"}
    if member not in {DataType.BF16, DataType.STRING}
}
