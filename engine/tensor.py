"""Tensors in transit: a data type, a shape and bytes in one or several parts.

A `Tensor` converts or joins its bytes only on request. A request body arrives in
chunks, and each chunk is copied directly into shared memory. Strings travel as the Open
Inference Protocol writes them: each element is a 4-byte little-endian length and that
many bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from popef_io import DataType, TensorInfo, decode_strings, encode_strings

Buffer: TypeAlias = bytes | bytearray | memoryview
Array: TypeAlias = npt.NDArray[Any]


class Tensor:
    """One tensor: row-major little-endian bytes, in one or several parts.

    It is not a dataclass, because every input of every request makes one, and a frozen
    dataclass takes ten times as long to construct.
    """

    __slots__ = ("data_type", "nbytes", "parts", "shape")

    def __init__(
        self,
        data_type: DataType,
        shape: tuple[int, ...],
        parts: Sequence[Buffer],
        nbytes: int | None = None,
    ) -> None:
        self.data_type = data_type
        self.shape = shape
        self.parts = parts
        self.nbytes = sum(len(p) for p in parts) if nbytes is None else nbytes

    @classmethod
    def from_numpy(cls, array: Array, data_type: DataType | None = None) -> Tensor:
        """Return the tensor of `array`. Copies only if `array` is not contiguous or not
        native.

        `data_type` distinguishes types that numpy lacks: BF16 and FP8 travel as
        unsigned integers that hold their bits.
        """
        if data_type is None:
            data_type = DataType.from_numpy(array.dtype)
        if data_type is DataType.STRING:
            return cls(data_type, array.shape, (encode_strings(array),))
        if array.nbytes == 0:
            return cls(data_type, array.shape, (), 0)
        try:
            view = array.data.cast("B")
        except (TypeError, ValueError):  # not contiguous, or a type that only numpy has
            view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        return cls(data_type, array.shape, (view,), array.nbytes)

    @property
    def buffer(self) -> memoryview:
        """Return all bytes as one view. Copies only if there are several parts."""
        if len(self.parts) == 1:
            return memoryview(self.parts[0]).cast("B")
        return memoryview(b"".join(self.parts))

    def tobytes(self) -> bytes:
        return b"".join(self.parts)

    def numpy(self) -> Array:
        """Return the data as a numpy array: a view if the bytes are in one part.

        STRING gives an object array of `bytes`. BF16 gives an array of uint16 bits.
        """
        if self.data_type is DataType.STRING:
            return decode_strings(self.buffer, self.shape)
        dtype = self.data_type.numpy_dtype
        if self.nbytes == 0:
            return np.empty(self.shape, dtype)
        return np.frombuffer(self.buffer, dtype).reshape(self.shape)

    def __reduce__(self) -> tuple[object, ...]:  # views have none, nor compiled slots
        return Tensor, (self.data_type, self.shape, (self.tobytes(),), self.nbytes)

    def __repr__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"<Tensor {self.data_type.name}[{dims}] {self.nbytes} bytes>"


@dataclass(frozen=True, slots=True)
class DataDesc:
    """A named tensor that a runner expects or delivers (Model Runtime: `DataDesc`).

    `shape` has -1 for a size that is known only at run time. It is None if the rank is
    unknown. In the description of requests, the batch dimension is -1, and its size
    must be a multiple of `multiple`.
    """

    name: str
    shape: tuple[int, ...] | None
    data_type: DataType
    popef_contains_tensor_data: bool = False
    multiple: int = 1

    def __reduce__(self) -> tuple[object, ...]:  # compiled, frozen ones have none
        return DataDesc, astuple(self)

    @property
    def size_in_bytes(self) -> int:
        """Return the bytes of one transfer; -1 if the shape is not fixed."""
        info = TensorInfo(self.shape, self.data_type)
        if not info.is_static or self.data_type is DataType.STRING:
            return -1
        return info.size_in_bytes

    def numpy_data_type(self) -> np.dtype[Any]:
        return self.data_type.numpy_dtype

    def accepts_shape(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of this shape is allowed under this name."""
        mine = self.shape
        if mine is None or mine == shape:
            return True
        return len(mine) == len(shape) and all(
            a in (-1, b) for a, b in zip(mine, shape, strict=True)
        )
