"""Tensors and their types, in Triton's spelling."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine import Array

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
#: Data types in the order of Triton's numbers, from 1.
TRITON_TO_NUMPY_TYPE = dict(enumerate(TRITON_STRING_TO_NUMPY.values(), 1))
NUMPY_TO_TRITON_TYPE = {kind: n for n, kind in TRITON_TO_NUMPY_TYPE.items()}


class Tensor:
    """A name and an array. Arrays of inputs are read-only."""

    def __init__(self, name: str, array: Array) -> None:
        if not isinstance(array, np.ndarray):
            kind = type(array).__name__
            raise TypeError(f"tensor {name!r} takes a NumPy array, got {kind}")
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        return self._array

    def triton_dtype(self) -> int:
        return numpy_to_triton_type(self._array.dtype.type)

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        """Return True: devices of Python models have the tensors in memory."""
        return True

    def to_dlpack(self) -> Any:
        # Consumers of DLPack may write to the array, so they receive a copy.
        return self._array.copy().__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.copy().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        if not hasattr(tensor, "__dlpack__"):
            tensor = _Capsule(tensor)
        return Tensor(name, np.from_dlpack(tensor))

    def __repr__(self) -> str:
        return f"<Tensor {self._name!r} {self._array.dtype}{self.shape()}>"


class _Capsule:
    """A tensor that a caller has packed as a DLPack capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the processor's memory


def triton_to_numpy_type(data_type: int) -> Any:
    return TRITON_TO_NUMPY_TYPE[data_type]


def numpy_to_triton_type(data_type: Any) -> int:
    if np.dtype(data_type).kind in "OSU":
        return NUMPY_TO_TRITON_TYPE[np.object_]
    return NUMPY_TO_TRITON_TYPE[np.dtype(data_type).type]


def triton_string_to_numpy(triton_type_string: str) -> Any:
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(tensor: Array) -> Array:
    """Return the strings of an array as bytes: each after its length, in four bytes."""
    parts = []
    for each in tensor.ravel().tolist():
        raw = each if isinstance(each, bytes) else str(each).encode()
        parts.append(len(raw).to_bytes(4, "little") + raw)
    return np.array(b"".join(parts), dtype=object)


def deserialize_bytes_tensor(encoded: bytes) -> Array:
    """Return the array that `serialize_byte_tensor` received, in one dimension."""
    found: list[bytes] = []
    at = 0
    while at < len(encoded):
        end = at + 4 + int.from_bytes(encoded[at : at + 4], "little")
        found.append(encoded[at + 4 : end])
        at = end
    return np.array(found, dtype=object)
