"""Memory that callers hand over, by tensor name (Model Runtime User Guide 3.1)."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import numpy.typing as npt

from engine import DataDesc

Array = npt.NDArray[Any]


class InputMemoryView(UserDict[str, Any]):
    """Name to memory of inputs: numpy arrays, or anything with their buffer protocol.

    Holds what is assigned; may be changed and used again for many calls.
    """

    def __setitem__(self, name: str, memory: Any) -> None:
        memoryview(memory).release()  # TypeError for what is no memory
        super().__setitem__(name, memory)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {list(self)}>"


class OutputMemoryView(InputMemoryView):
    """Name to writable memory of outputs."""

    def __setitem__(self, name: str, memory: Any) -> None:
        with memoryview(memory) as view:
            if view.readonly:
                raise ValueError(f"the memory for output {name!r} is read-only")
        super().__setitem__(name, memory)


class PopefPaths(list[str]):
    """The files of one model."""


def typed(memory: Any, desc: DataDesc | None) -> Array:
    """`memory` as an array of the tensor `desc`; a view of it.

    Memory views are bytes with a length, whatever they were made of: an array of
    another shape or type is taken for the bytes it has, if these are whole rows.
    """
    array = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, "u1")
    if desc is None or not array.flags.c_contiguous or desc.numpy_data_type().hasobject:
        return array
    dtype, shape = desc.numpy_data_type(), desc.shape
    if shape is None or any(size < 0 for size in shape[1:]):
        return array
    if array.dtype == dtype and array.ndim == len(shape):
        return array
    try:
        flat: Array = array.reshape(-1).view(dtype)
        return flat.reshape(-1, *shape[1:]) if shape else flat.reshape(())
    except ValueError:
        return array  # the engine says what is wrong with it
