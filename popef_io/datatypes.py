"""The enumerations of PopEF: kinds of blobs, of tensors, of elements.

Names and order follow the PopEF User Guide (section 5.1). The numbers are the ones in
PopGate's files, see docs/reference/popef-format.md.
"""

from __future__ import annotations

import sys
from enum import Enum

import numpy as np

from popef_io.errors import InvalidValueError


class _Numbered(Enum):
    """An enumeration whose members convert to their numbers: `int(member)`."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


class BlobType(_Numbered):
    """Types of blobs (PopEF User Guide 2.1)."""

    POPLAR_EXECUTABLE = 0
    METADATA = 1
    DATA_TENSOR = 2
    DATA_FEED = 3
    OPAQUE = 4


class TensorType(_Numbered):
    """Direction of an anchor from the model's view: INPUT is host to device."""

    UNKNOWN = 0
    INPUT = 1
    OUTPUT = 2


class DataType(_Numbered):
    """Type of one tensor element.

    BF16 and STRING are PopGate's additions. Their numbers leave room for new types of
    PopEF. F8, F8143 and F8152 have no numpy type and travel as uint8. BF16 travels as
    uint16 that holds the bits. A STRING element is a 4-byte little-endian length and as
    many bytes.
    """

    item_size: int
    """Bytes of one element; 0 for STRING, whose elements vary."""
    numpy_dtype: np.dtype[np.generic]
    """The numpy type that carries an element: `object` (of bytes) for STRING."""

    BOOL = 0
    F8 = 1
    F16 = 2
    F32 = 3
    F64 = 4
    S8 = 5
    U8 = 6
    S16 = 7
    U16 = 8
    S32 = 9
    U32 = 10
    S64 = 11
    U64 = 12
    F8143 = 13
    F8152 = 14
    BF16 = 64
    STRING = 65

    @classmethod
    def from_numpy(cls, dtype: np.dtype[np.generic] | type | str) -> DataType:
        """Return the data type of arrays of `dtype`. Object, bytes and text give
        STRING.

        Raises InvalidValueError for a type without a counterpart (complex, dates) and
        for numbers in the other byte order.
        """
        wanted = np.dtype(dtype)
        if wanted.kind in "OSU":
            return cls.STRING
        # The name of a type takes longer than all the rest here.
        if wanted.isbuiltin != 1 and wanted.name == "bfloat16":
            return cls.BF16
        found = _BY_KIND_AND_SIZE.get((wanted.kind, wanted.itemsize))
        if found is None:
            known = ", ".join(member.name for member in cls)
            raise InvalidValueError(
                f"no PopEF data type corresponds to numpy type {wanted}; the data "
                f"types are {known}"
            )
        if wanted.byteorder == _FOREIGN_ORDER:
            raise InvalidValueError(
                f"numpy type {wanted} is not in native byte order; convert the array "
                f"with .astype({wanted.newbyteorder('=').name!r})"
            )
        return found


_FOREIGN_ORDER = ">" if sys.byteorder == "little" else "<"

_NUMPY_NAMES = {
    DataType.BOOL: "?",
    DataType.F8: "u1",
    DataType.F16: "<f2",
    DataType.F32: "<f4",
    DataType.F64: "<f8",
    DataType.S8: "i1",
    DataType.U8: "u1",
    DataType.S16: "<i2",
    DataType.U16: "<u2",
    DataType.S32: "<i4",
    DataType.U32: "<u4",
    DataType.S64: "<i8",
    DataType.U64: "<u8",
    DataType.F8143: "u1",
    DataType.F8152: "u1",
    DataType.BF16: "<u2",
    DataType.STRING: "O",
}
for _member, _name in _NUMPY_NAMES.items():
    # Plain attributes: a property would look an enumeration up at every use.
    _member.numpy_dtype = np.dtype(_name)
    _member.item_size = 0 if _name == "O" else _member.numpy_dtype.itemsize

_BORROWERS = {DataType.F8, DataType.F8143, DataType.F8152, DataType.BF16}
_BY_KIND_AND_SIZE = {
    (member.numpy_dtype.kind, member.item_size): member
    for member in DataType
    if member not in _BORROWERS | {DataType.STRING}
}
