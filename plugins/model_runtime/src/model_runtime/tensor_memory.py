# ruff: noqa: N802 - the names are the original's
"""Blocks of memory and views of them, as numpy arrays.

Blocks made by callers have one dimension, of bytes. Blocks from a runner have the shape
and the type of their tensor.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np

from model_runtime.arguments import at_most_one_of, unsigned
from model_runtime.memory import ByName, buffer_of
from popef.errors import WrongValue
from popef.taking import number


class _Memory(np.ndarray[Any, Any]):
    """An array whose `data` is its buffer.

    Results of computations with it are ordinary arrays or numbers.
    """

    @property
    def data_size_bytes(self) -> int:
        """Return the number of bytes."""
        return self.nbytes

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
    ) -> Any:
        out = options.pop("out", None)
        if out is not None:
            options["out"] = tuple(map(_plain, out))
        result = getattr(ufunc, method)(*map(_plain, inputs), **options)
        # An operation in place returns the given array.
        return out[0] if out is not None and len(out) == 1 else result


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Memory) else value


class ConstTensorMemoryView(_Memory):
    """A read-only view of the first `data_size_bytes` bytes of `data`; without a size,
    of all bytes. With the argument `other` it is a view of another view.
    """

    def __new__(
        cls,
        data: Any = None,
        data_size_bytes: SupportsIndex | None = None,
        *,
        other: TensorMemoryView | None = None,
    ) -> ConstTensorMemoryView:
        source = at_most_one_of("data and other", data, other)
        view = _first(b"" if source is None else source, data_size_bytes).view(cls)
        view.flags.writeable = False
        return view


class TensorMemoryView(_Memory):
    """A writable view of the first `data_size_bytes` bytes of `data`."""

    def __new__(
        cls, data: Any = None, data_size_bytes: SupportsIndex | None = None
    ) -> TensorMemoryView:
        view = _first(bytearray() if data is None else data, data_size_bytes).view(cls)
        if view.size and not view.flags.writeable:
            raise WrongValue("the memory is read-only")
        return view


class TensorMemory(_Memory):
    """A block of `data_size_bytes` bytes, which are zero at first. A runner makes one
    for a tensor.
    """

    def __new__(cls, data_size_bytes: SupportsIndex = 0) -> TensorMemory:
        return np.zeros(unsigned(data_size_bytes), np.uint8).view(cls)

    def getView(self) -> TensorMemoryView:
        """Return the bytes, which can be read and written in place."""
        return TensorMemoryView(self)

    def getConstView(self) -> ConstTensorMemoryView:
        """Return the bytes, which can be read in place."""
        return ConstTensorMemoryView(self)


class InputMemory(ByName[TensorMemory]):
    """Memory of inputs, by name."""


def _first(data: Any, size: SupportsIndex | None) -> np.ndarray[Any, Any]:
    with buffer_of("data", data) as view:
        length = view.nbytes
        if not view.c_contiguous:
            raise WrongValue(
                "the memory is not contiguous in row-major order, as a view "
                "needs it; pass np.ascontiguousarray(array), which copies it"
            )
    wanted = length if size is None else number(size)
    if not 0 <= wanted <= length:
        raise WrongValue(
            f"data_size_bytes is {wanted}, but the memory has {length} bytes"
        )
    return np.frombuffer(data, np.uint8, wanted) if length else np.zeros(0, np.uint8)
