"""Fit tensors to the model that another model calls."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from app.errors import InvalidTensor
from app.sizes import counted
from app.spec import ModelSpec, TensorSpec
from engine import InvalidInput, Tensor


def common_shape(
    first: tuple[int, ...] | None, second: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Return the shape that satisfies both; -1 is any size. Raises ValueError."""
    if first is None or second is None:
        return second if first is None else first
    if len(first) != len(second):
        raise ValueError("ranks differ")
    if any(a != b and -1 not in (a, b) for a, b in zip(first, second, strict=True)):
        raise ValueError("sizes differ")
    return tuple(max(a, b) for a, b in zip(first, second, strict=True))


def checked_rows(spec: ModelSpec, feed: Mapping[str, Tensor]) -> int:
    """Return the rows of a step's inputs, which must fit its model. Raises
    InvalidTensor.
    """
    rows = -1
    for item in spec.inputs:
        if item.name not in feed:
            continue
        shape = feed[item.name].shape
        try:
            common_shape(item.shape, shape)
        except ValueError:
            expected = "any" if item.shape is None else list(item.shape)
            msg = f"input {item.name!r} expects shape {expected}, got {list(shape)}"
            raise InvalidTensor(msg) from None
        if not spec.is_batched:
            continue
        if rows not in (-1, shape[0]):
            msg = (
                f"input {item.name!r} has {counted(shape[0], 'row')}, another input "
                f"{rows}"
            )
            raise InvalidTensor(msg)
        rows = shape[0]
    if spec.is_batched and 0 < spec.max_rows < rows:
        raise InvalidTensor(
            f"the request has {counted(rows, 'row')}, at most {spec.max_rows} are "
            "allowed"
        )
    return max(1, rows)


def called_inputs(spec: ModelSpec, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs in the model's types. Raises InvalidInput."""
    found = {}
    for name, tensor in given.items():
        want = spec.inputs_by_name.get(name)
        if want is None:
            known = ", ".join(spec.inputs_by_name)
            raise InvalidInput(f"the model has no input {name!r}; it has {known}")
        if tensor.data_type is not want.data_type:
            tensor = _converted(tensor, want)
        found[name] = tensor
    missing = [
        name
        for name in spec.inputs_by_name
        if name not in found and name not in spec.defaults and not spec.optional_inputs
    ]
    if missing:
        raise InvalidInput(f"input {missing[0]!r} is missing")
    rows = next((t.shape[0] for t in found.values() if t.shape), 1)
    for name in spec.defaults:
        if name not in found and name in spec.inputs_by_name:
            found[name] = spec.default(name, rows)
    return found


def _converted(tensor: Tensor, want: TensorSpec) -> Tensor:
    """Return numbers in another type of the same kind. Raises InvalidInput."""
    array, dtype = tensor.numpy(), want.type.dtype
    fits = dtype is not None and np.can_cast(array.dtype, dtype, "same_kind")
    if not fits or want.datatype == "BF16":
        raise InvalidInput(
            f"input {want.name!r} must be {want.datatype}, got {array.dtype.name}"
        )
    return Tensor.from_numpy(array.astype(dtype), want.data_type)
