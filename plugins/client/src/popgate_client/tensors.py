"""Conversion of a program's values to tensors on the wire, and back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from popgate_client.errors import InvalidRequest
from popgate_client.values import (
    as_floats,
    as_integers,
    whole_numbers,
    with_gaps,
    with_rank,
    without_buffers,
)

Array: TypeAlias = npt.NDArray[Any]

#: The protocol's datatypes. BF16 is float32 in NumPy, which holds it exactly.
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
        "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2",
        "FP32": "<f4", "FP64": "<f8", "BF16": "<f4", "BYTES": "O",
    }.items()
}  # fmt: skip
_DATATYPES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
#: Datatypes with values that no float holds exactly.
_EXACT = ("INT64", "UINT64")
#: The least float32 that rounds to an infinite brain float.
_BF16_INFINITY = float.fromhex("0x1.ffp127")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array to send or received. It has the datatype's dtype and is
    C-contiguous. BYTES are `bytes` objects, BF16 is float32.
    """

    name: str
    datatype: str
    array: Array

    @property
    def shape(self) -> list[int]:
        return list(self.array.shape)

    def raw(self) -> Array | bytes:
        """Return the bytes: row-major, little-endian; strings with their lengths. Not
        copied if possible.
        """
        if self.datatype == "BYTES":
            items = self.array.reshape(-1).tolist()
            return b"".join(part for i in items for part in (_LENGTH.pack(len(i)), i))
        return to_bf16(self.array) if self.datatype == "BF16" else self.array

    def values(self) -> Array | list[Any]:
        """Return the flat values for JSON. Raises `InvalidRequest` for bytes that are
        not UTF-8.
        """
        flat = self.array.reshape(-1)
        if self.datatype != "BYTES":
            return flat
        try:
            return [item.decode() for item in flat.tolist()]
        except UnicodeDecodeError:
            msg = (
                f"input {self.name!r} has bytes that are not UTF-8, which JSON "
                "requires; choose another encoding"
            )
            raise InvalidRequest(msg) from None


def tensor_of(
    name: str, value: Any, datatype: str = "", shape: Sequence[int] | None = None
) -> Tensor:
    """Return the tensor for a value: an array, numbers, strings, or lists of them.

    `datatype` and `shape` are the model's. Without a datatype the value's own type
    applies. Numbers are converted if only precision is lost. Missing leading dimensions
    of 1 are added; a list for a column ``[-1, 1]`` is its rows. None is NaN for a
    float. Raises `InvalidRequest`.
    """
    array = _array(name, value, datatype)
    datatype = datatype or _datatype_of(name, array)
    try:
        bytes_ = datatype == "BYTES"
        array = _bytes_array(array, _text) if bytes_ else _cast(name, array, datatype)
    except UnicodeEncodeError as e:
        msg = f"input {name}: a string is not valid Unicode: {e.reason}"
        raise InvalidRequest(msg) from None
    except TypeError as e:
        raise InvalidRequest(f"input {name}: {e}") from None
    fitting = with_rank(array, shape)
    if fitting is array and not array.flags.c_contiguous:
        fitting = np.ascontiguousarray(array)
    return Tensor(name, datatype, fitting)


def _array(name: str, value: Any, datatype: str) -> Array:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        msg = f"input {name}: the array has masked values; send array.filled(…)"
        raise InvalidRequest(msg)
    if isinstance(value, np.ndarray):
        return np.asarray(value)  # encoders know no subclasses
    if datatype == "BYTES":
        value = without_buffers(value)
    text = isinstance(value, str | bytes) or datatype == "BYTES"
    try:
        # NumPy's own strings lose zero bytes at their end.
        if text and isinstance(value, bytes | str):
            array = np.empty((), object)
            array[()] = value
            return array
        array = np.asarray(value, dtype=object if text else None)
        if not datatype and array.dtype.kind in "SU":
            return np.asarray(value, dtype=object)
        return whole_numbers(value, array) if datatype in _EXACT else array
    except ValueError:
        msg = f"input {name}: the nested lists differ in length"
        raise InvalidRequest(msg) from None


def _datatype_of(name: str, array: Array) -> str:
    if array.dtype.name == "bfloat16":
        return "BF16"
    if array.dtype.kind in "OSTU":
        return "BYTES"
    is_plain = array.dtype.kind in "biuf"
    datatype = _DATATYPES.get(array.dtype.newbyteorder("<")) if is_plain else None
    if datatype is None:
        msg = f"input {name}: the protocol has no datatype for {array.dtype}"
        raise InvalidRequest(msg)
    return datatype


def _bytes_array(array: Array, other: Callable[[Any], object] = str) -> Array:
    """Return the elements as `bytes`. `other` makes the text of those that are no
    strings.
    """
    flat = [
        bytes(item)
        if isinstance(item, bytes | bytearray | memoryview)
        else (item if isinstance(item, str) else str(other(item))).encode()
        for item in array.reshape(-1).tolist()
    ]
    result = np.empty(len(flat), dtype=object)
    result[:] = flat
    return result.reshape(array.shape)


def _text(item: Any) -> Any:
    """Return a number, a date or the like. Raises TypeError for a gap or a collection,
    which `str` would accept, too.
    """
    gap = item is None or type(item).__name__ in ("NAType", "NaTType")
    if gap or (isinstance(item, float) and item != item):
        raise TypeError(f'{item} is not a string; send "" for a gap')
    if isinstance(item, list | tuple | dict | set):
        raise TypeError(f"expected strings, got {type(item).__name__}")
    return item


def _cast(name: str, array: Array, datatype: str) -> Array:
    wanted = DTYPES.get(datatype)
    if wanted is None:
        raise InvalidRequest(
            f"input {name}: unknown datatype {datatype}; expected one of the Open "
            "Inference Protocol, as in FP32"
        )
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype == wanted and datatype != "BF16":
        return array
    if array.size == 0:
        return array.astype(wanted)
    try:
        if datatype in _EXACT and array.dtype == object:
            return as_integers(_whole(name, array, datatype), wanted)
        if wanted.kind == "f":
            array = with_gaps(array)
            if array.dtype.kind in "iuf":
                limit = _BF16_INFINITY if datatype == "BF16" else np.inf
                return as_floats(array, wanted, limit)
    except OverflowError as e:
        raise InvalidRequest(f"input {name}: {e} for {datatype}") from None
    if array.dtype.kind not in "biuf":
        msg = f"input {name}: expected {datatype}, got values of {array.dtype}"
        raise InvalidRequest(msg)
    with np.errstate(invalid="ignore"):
        cast = array.astype(wanted)
    if not np.array_equal(cast, array):
        msg = f"input {name}: the values of {array.dtype} do not fit {datatype}"
        raise InvalidRequest(msg)
    return cast


def _whole(name: str, array: Array, datatype: str) -> Array:
    if all(isinstance(item, int | np.integer) for item in array.reshape(-1).tolist()):
        return array
    msg = f"input {name}: expected {datatype}, got values of {array.dtype}"
    raise InvalidRequest(msg)


def array_of(datatype: str, shape: Sequence[int], data: Any) -> Array:
    """Return the array of a tensor's bytes: a view of them if NumPy can use them in
    place.

    Raises ValueError or KeyError for invalid tensors.
    """
    if datatype == "BYTES":
        array = _strings(data)
    elif datatype == "BF16":
        array = _of_bf16(np.frombuffer(data, "<u2"))
    else:
        array = np.frombuffer(data, DTYPES[datatype])
        if not array.flags.aligned:
            array = array.copy()
    return array.reshape(shape)


def array_of_values(datatype: str, shape: Sequence[int], values: Any) -> Array:
    """Return the array of a list in JSON. Raises ValueError for values that are not of
    the datatype, which NumPy would round or cut.
    """
    dtype = DTYPES[datatype]
    array = np.array(values, dtype=dtype)
    if dtype.kind in "biu" and not np.array_equal(array, np.array(values)):
        raise ValueError(f"{datatype} has values of another type")
    if datatype == "BF16":  # the fewest digits that identify a brain float
        array = _of_bf16(to_bf16(array))
    return (_bytes_array(array) if datatype == "BYTES" else array).reshape(shape)


def _strings(data: Any) -> Array:
    data, items, offset = bytes(data), [], 0
    while offset < len(data):
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += 4 + length
        if offset > len(data):
            raise ValueError("a string is longer than the data")
        items.append(data[offset - length : offset])
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def _of_bf16(halves: Array) -> Array:
    array: Array = (halves.astype("<u4") << 16).view("<f4")
    return array


def to_bf16(array: Array) -> Array:
    """Return the upper halves of the float32 values, rounded to nearest, ties
    to even.
    """
    bits = np.asarray(array, dtype="<f4", order="C").view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    halves: Array = np.where(np.isnan(array), (bits >> 16) | 0x40, rounded)
    return halves.astype("<u2")
