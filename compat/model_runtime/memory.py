"""Memory that callers hand over, by tensor name (Model Runtime User Guide 3.1)."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from popef import Model

from engine import DataDesc

Array = npt.NDArray[Any]
ModelSource: TypeAlias = str | Sequence[str] | Model


class InputMemoryView(UserDict[str, Any]):
    """Name to memory of inputs: numpy arrays, or anything with their buffer protocol.

    Holds what is assigned; may be changed and used again for many calls.
    """

    def __setitem__(self, name: str, memory: Any) -> None:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise TypeError(f"expected the name of a tensor, got {kind}: {name!r}")
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


def arrays_of(
    memory: Mapping[str, Any], descs: Mapping[str, DataDesc]
) -> dict[str, Array]:
    """Each memory as an array of the tensor of its name."""
    if not isinstance(memory, Mapping):
        kind = type(memory).__name__
        raise TypeError(f"expected a view or a dict of memory by name, got {kind}")
    return {name: typed(value, descs.get(name)) for name, value in memory.items()}


def typed(memory: Any, desc: DataDesc | None) -> Array:
    """`memory` as an array of the tensor `desc`; a view of it.

    To the original, memory is bytes with a length: plain bytes, and arrays of the right
    type in another shape, are taken for the rows they hold.
    """
    array: Array
    if isinstance(memory, np.ndarray):
        array = memory
    else:
        try:
            array = np.frombuffer(memory, np.uint8)
        except TypeError:
            what = "tensor" if desc is None else repr(desc.name)
            kind = type(memory).__name__
            msg = f"{what}: expected a numpy array or another buffer, got {kind}"
            raise TypeError(msg) from None
    if desc is None or desc.shape is None or any(size < 0 for size in desc.shape[1:]):
        return array
    dtype, shape = desc.numpy_data_type(), desc.shape
    is_right = array.dtype == dtype
    if (is_right and array.ndim == len(shape)) or not array.flags.c_contiguous:
        return array
    if not is_right and (array.dtype != np.uint8 or dtype.hasobject):
        return array
    try:
        flat = array.reshape(-1).view(dtype)
        return flat.reshape(-1, *shape[1:]) if shape else flat.reshape(())
    except ValueError:
        return array  # the engine says what is wrong with it
