"""Classification: the highest values of an output, as ``value:index:label`` strings.

Each value has the fewest digits that read back as the same value. The highest comes
first. Equal ones stay in the order of their indices, and NaN comes last. A label
follows if the model has one for the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from app.codec.half_floats import BF16
from app.codec.outputs import Output
from app.errors import NotRepresentable
from app.give_way import BLOCK, give_way
from app.spec import ModelSpec, TensorSpec
from engine import Tensor

MAX_CLASSES = 1 << 20  # strings that one output may become
# In rows of at least `_LONG` values, the highest values are selected before they are
# sorted. This is done only if they are at most a `_PART`th of the row.
_LONG = 4096
_PART = 8
# The number of values of a row that are searched at a time.
_AT_A_TIME = 1 << 18


def classify(
    output: Output, tensor: Tensor, count: int, labels: Sequence[str], *, batched: bool
) -> Tensor:
    """Return the BYTES tensor of the `count` highest values: of each row if `batched`.

    Its shape is ``[rows, n]`` or ``[n]``, with n at most the number of values.
    Raises NotRepresentable for more strings than can be of use.
    """
    array = output.array(tensor) if tensor.nbytes else np.empty(0, output.dtype)
    rows = tensor.shape[0] if batched and tensor.shape else 1
    table = array.reshape(rows, array.size // rows if rows else 0)
    strings = rows * min(count, table.shape[1])
    if strings > MAX_CLASSES:
        msg = (
            f"the {count} highest classes of output '{output.name}' would be "
            f"{strings} strings, and at most {MAX_CLASSES} are allowed: request its "
            "values instead"
        )
        raise NotRepresentable(msg)
    best = _highest(output, table, count)
    texts: list[bytes] = []
    for row, indices in zip(table, best, strict=True) if strings else ():
        for value, index in zip(row[indices], indices.tolist(), strict=True):
            texts.append(_text(output, value, index, labels))
            if len(texts) % BLOCK == 0:
                give_way()
    elements = np.empty(len(texts), object)
    elements[:] = texts
    shape = best.shape if batched else best.shape[1:]
    return Tensor.from_numpy(elements.reshape(shape))


def _keys(output: Output, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return sort keys: the higher the element, the lower its key."""
    values = output.values(elements.reshape(-1)).reshape(elements.shape)
    # For integers the key is the complement: -2**31 has no negative, nor has an
    # unsigned 1.
    return -values if values.dtype.kind == "f" else ~values


def _highest(
    output: Output, table: npt.NDArray[Any], count: int
) -> npt.NDArray[np.intp]:
    """Return indices of the highest values of each row, best first."""
    width = table.shape[1]
    if width < _LONG or count * _PART > width:
        keys = _keys(output, table)
        return np.argsort(keys, axis=1, kind="stable")[:, :count]
    best = np.empty((len(table), count), np.intp)
    for found, row in zip(best, table, strict=True):
        found[:] = _best_of(output, row, count)
        give_way()
    return best


def _best_of(output: Output, row: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """Return indices of the highest values of a row. The row is searched part by part,
    which needs little more memory than the row.
    """
    size = max(_AT_A_TIME, _PART * count)
    if row.size <= size:
        return _lowest(_keys(output, row), count)
    parts = []
    for start in range(0, row.size, size):
        keys = _keys(output, row[start : start + size])
        # Indices stay in ascending order, which decides between equal values.
        parts.append(start + np.sort(_lowest(keys, min(count, keys.size))))
        give_way()
    candidates = np.concatenate(parts)
    return candidates[_lowest(_keys(output, row[candidates]), count)]


def _lowest(keys: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """Return indices of the `count` lowest values in their order, without sorting the
    rest.
    """
    edge = np.partition(keys, count - 1)[count - 1]
    if edge == edge:
        sure, tied = np.flatnonzero(keys < edge), np.flatnonzero(keys == edge)
    else:  # fewer values than `count`
        odd = np.isnan(keys)
        sure, tied = np.flatnonzero(~odd), np.flatnonzero(odd)
    found = np.sort(np.concatenate((sure, tied[: count - sure.size])))
    return found[np.argsort(keys[found], kind="stable")]


def _text(output: Output, value: Any, index: int, labels: Sequence[str]) -> bytes:
    if output.datatype == "BF16":
        shown = _odd(int(value)) or BF16[int(value)].decode()
    else:
        shown = str(value)
    label = f":{labels[index]}" if index < len(labels) and labels[index] else ""
    return f"{shown}:{index}{label}".encode()


def _odd(bits: int) -> str:
    """Return NaN or an infinity of BF16 in numpy's words; empty for other values."""
    if bits & 0x7F80 != 0x7F80:
        return ""
    if bits & 0x7F:
        return "nan"
    return "-inf" if bits & 0x8000 else "inf"


def classified(spec: ModelSpec, names: frozenset[str]) -> ModelSpec:
    """Return `spec` with the outputs `names` as strings of `classify`."""
    return replace(
        spec,
        outputs=tuple(
            TensorSpec.make(output.name, "BYTES") if output.name in names else output
            for output in spec.outputs
        ),
    )
