"""Memory that callers pass, by tensor name (Model Runtime User Guide 3.1)."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from engine import Array, DataDesc
from popef.errors import WrongType, WrongValue
from popef.taking import Text, got, text

Value = TypeVar("Value")


class WrongName(KeyError, RuntimeError):
    """The name does not exist."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError shows it in quotes


class ByName(dict[str, Value]):
    """A dict whose error for a missing name lists its names."""

    def __missing__(self, name: object) -> Value:
        if isinstance(name, bytes) and (key := text(name)) in self:
            return self[key]
        raise wrong_name(name, self)


def wrong_name(name: object, known: Iterable[str]) -> WrongName:
    """Return the error that lists the existing names."""
    return WrongName(f"there is no {name!r}; the names are {list(known)}")


class InputMemoryView(UserDict[str, Any]):
    """Memory of inputs, by name: numpy arrays, or any objects with the buffer protocol.

    The view refers to the assigned memory. It may be changed, and used for many calls.
    """

    def __setitem__(self, name: Text, memory: Any) -> None:
        key = text(name, "the name of a tensor")
        self._check(key, memory)
        super().__setitem__(key, memory)

    def __missing__(self, name: object) -> Any:
        if isinstance(name, bytes) and (key := text(name)) in self:
            return self[key]
        raise wrong_name(name, self)

    def _check(self, name: str, memory: Any) -> None:
        """Raise WrongType for objects that are not memory."""
        buffer_of(name, memory).release()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {list(self)}>"


class OutputMemoryView(InputMemoryView):
    """Writable memory of outputs, by name."""

    def _check(self, name: str, memory: Any) -> None:
        with buffer_of(name, memory) as view:
            if view.readonly:
                raise WrongValue(f"the memory for output {name!r} is read-only")


def buffer_of(name: str, memory: Any) -> memoryview:
    """Return the buffer of `memory`; raise WrongType if it has none."""
    try:
        return memoryview(memory)
    except (TypeError, ValueError, BufferError):
        raise WrongType(
            f"{name!r}: expected a numpy array of numbers or another buffer, "
            f"{got(memory)}"
        ) from None


def mapping(memory: Any) -> Mapping[Any, Any]:
    """Return `memory`; raise WrongType unless it is a mapping."""
    if not isinstance(memory, Mapping):
        raise WrongType(f"expected a view or a dict, {got(memory)}")
    return memory


def arrays_of(
    memory: Mapping[str, Any], descs: Mapping[str, DataDesc]
) -> dict[str, Array]:
    """Return each memory as an array of the tensor with its name."""
    if not isinstance(memory, Mapping):
        raise WrongType(f"expected a view or a dict of memory by name, {got(memory)}")
    try:
        return {name: typed(value, descs[name]) for name, value in memory.items()}
    except KeyError:  # names in bytes, or names that the model does not have
        named = {text(k, "the name of a tensor"): v for k, v in memory.items()}
        return {k: typed(v, descs.get(k), k) for k, v in named.items()}


def typed(memory: Any, desc: DataDesc | None, name: str = "") -> Array:
    """Return `memory` as an array of the tensor `desc`, without a copy.

    For the original, memory is bytes with a length. So plain bytes, and arrays of the
    right type in another shape, are accepted for the rows that they hold.
    """
    array: Array
    if isinstance(memory, np.ndarray):
        # A plain array ignores additions of subclasses, such as a mask.
        array = memory if type(memory) is np.ndarray else np.asarray(memory)
    else:
        try:
            array = np.frombuffer(memory, np.uint8)
        except (TypeError, ValueError, BufferError):
            with buffer_of(name if desc is None else desc.name, memory) as view:
                empty = not view.nbytes
            array = np.empty(0, np.uint8) if empty else np.asarray(memory)
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
        return array  # the engine reports the fault
