"""``frozen_inputs`` of a model's ``config.toml``: constants for inputs that requests
omit.

A value is a number, nested lists of numbers, or the name of a file in the model's
folder::

    [frozen_inputs]
    threshold = 0.5                # one number fills the tensor
    bias = [0.1, 0.2, 0.3]
    table = "table.npy"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.config.model_files import file_inside, read_array, shown
from engine import Array
from popef_io import Anchor, DataType, Model, TensorType

SUFFIX = ".npy"
# Datatypes that are transferred as integers holding their bits. Users write plain
# numbers.
_BITS = (DataType.BF16, DataType.F8)


@dataclass(frozen=True, slots=True)
class FrozenFile:
    """A file that holds a value; a file of another size or time is another value."""

    path: Path
    size: int
    time_ns: int


def with_frozen_files(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return `values` with the files that they name in `folder`. Raises ValueError."""
    return {
        name: _file(folder, value) if isinstance(value, str) else value
        for name, value in values.items()
    }


def frozen_arrays(model: Model, values: Mapping[str, Any]) -> dict[str, Array]:
    """Return the values as arrays of their inputs.

    Raises ValueError for an input that the model does not have, and for a value that
    does not suit it.
    """
    anchors = {a.name: a for a in model.anchors if a.type is TensorType.INPUT}
    arrays = {}
    for name, value in values.items():
        anchor = anchors.get(name)
        if anchor is None:
            msg = f"frozen_inputs names {name!r}; the model's inputs are "
            raise ValueError(msg + ", ".join(sorted(anchors)))
        try:
            arrays[name] = _array(anchor, value)
        except (ValueError, OverflowError, TypeError) as e:
            raise ValueError(f"frozen_inputs.{name}: {e}") from e
    return arrays


def _file(folder: Path, name: str) -> FrozenFile:
    try:
        path = file_inside(folder, name)
    except ValueError as e:
        raise ValueError(f"frozen_inputs: file {shown(name)} {e}") from None
    try:
        found = path.stat()
    except OSError as e:
        msg = f"frozen_inputs: file {shown(name)} cannot be read: {e.strerror}"
        raise ValueError(msg) from e
    return FrozenFile(path, found.st_size, found.st_mtime_ns)


def _array(anchor: Anchor, value: Any) -> Array:
    info = anchor.tensor_info
    if isinstance(value, str):
        raise ValueError(f"{value!r} names a file, but the model has no folder")
    if isinstance(value, FrozenFile):
        try:
            return read_array(value.path)
        except ValueError as e:
            raise ValueError(f"file {shown(value.path.name)} {e}") from None
    kind = info.data_type.name
    if info.data_type in _BITS or info.data_type is DataType.STRING:
        raise ValueError(f"{kind} cannot be written in TOML; use a {SUFFIX} file")
    given = np.asarray(value)
    if given.dtype.kind not in "biuf":
        msg = f"expected numbers, got {value!r}"
        raise ValueError(msg[:200])
    array = given.astype(info.data_type.numpy_dtype)
    if array.dtype.kind != "f" and not np.array_equal(array, given):
        raise ValueError(f"some values are not {kind}")
    if not array.ndim and info.shape and min(info.shape) >= 0:
        return np.full(info.shape, array)
    return array
