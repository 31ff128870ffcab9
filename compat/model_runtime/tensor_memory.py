# ruff: noqa: N802 - the names are the original's
"""Blocks of memory and views of them; here they are numpy arrays of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_runtime.arguments import at_most_one_of


class _Bytes(np.ndarray[Any, Any]):
    """One dimension of bytes. `data`, which every array has, is their buffer."""

    @property
    def data_size_bytes(self) -> int:
        return self.nbytes


class ConstTensorMemoryView(_Bytes):
    """A read-only view of the first `data_size_bytes` bytes of `data`; of all of them
    without a size. Of another view as well, by its name `other`."""

    def __new__(
        cls,
        data: Any = None,
        data_size_bytes: int | None = None,
        *,
        other: TensorMemoryView | None = None,
    ) -> ConstTensorMemoryView:
        source = at_most_one_of("data and other", data, other)
        view = _first(b"" if source is None else source, data_size_bytes).view(cls)
        view.flags.writeable = False
        return view


class TensorMemoryView(_Bytes):
    """A view of the first `data_size_bytes` bytes of `data`, which is writable."""

    def __new__(
        cls, data: Any = None, data_size_bytes: int | None = None
    ) -> TensorMemoryView:
        view = _first(bytearray() if data is None else data, data_size_bytes).view(cls)
        if view.size and not view.flags.writeable:
            raise ValueError("the memory is read-only")
        return view


class TensorMemory(_Bytes):
    """A block of `data_size_bytes` bytes of its own, zero at first."""

    def __new__(cls, data_size_bytes: int = 0) -> TensorMemory:
        return np.zeros(data_size_bytes, np.uint8).view(cls)

    def getView(self) -> TensorMemoryView:
        return TensorMemoryView(self)

    def getConstView(self) -> ConstTensorMemoryView:
        return ConstTensorMemoryView(self)


class InputMemory(dict[str, TensorMemory]):
    """Name to the memory of an input."""


def _first(data: Any, size: int | None) -> np.ndarray[Any, Any]:
    with memoryview(data) as view:
        length = view.nbytes
    if size is not None and not 0 <= size <= length:
        raise ValueError(f"data_size_bytes is {size}, the memory has {length}")
    if not length:
        return np.zeros(0, np.uint8)
    return np.frombuffer(data, np.uint8, length if size is None else size)
