"""Convert tensors between the models of an ensemble."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from app.errors import InvalidTensor
from app.serving.ensemble_graph import Face, common_shape
from app.sizes import counted
from app.spec import ModelSpec, TensorSpec
from engine import InvalidInput, Tensor


def with_rank(
    tensor: Tensor, expected: tuple[int, ...] | None, spec: ModelSpec
) -> Tensor:
    """Return a tensor with or without rows, as `spec` counts them. If the rank differs
    by one, a first dimension of 1 is added or removed.
    """
    shape = tensor.shape
    if expected is None or len(shape) == len(expected):
        return tensor
    if spec.is_batched and len(shape) + 1 == len(expected):
        shape = (1, *shape)
    elif not spec.is_batched and len(shape) == len(expected) + 1 and shape[0] == 1:
        shape = shape[1:]
    else:
        return tensor
    return Tensor(tensor.data_type, shape, tensor.parts, tensor.nbytes)


def given(tensor: Tensor, face: Face, spec: ModelSpec) -> Tensor:
    """Return an output as clients see it.

    Raises InvalidTensor if that is impossible.
    """
    try:
        common_shape(face.inner, tensor.shape)
    except ValueError:
        msg = (
            f"output {face.name!r} of ensemble {spec.name!r} has shape "
            f"{list(tensor.shape)}, but the ensemble declares {list(face.inner or ())}"
        )
        raise InvalidTensor(msg) from None
    if face.outer == face.inner:
        return tensor
    return reshaped(tensor, face.outer, batched=spec.is_batched)


def reshaped(
    tensor: Tensor, wanted: tuple[int, ...] | None, *, batched: bool
) -> Tensor:
    """Return the elements in another shape, with the same rows; -1 stands for the
    remaining size.

    Raises InvalidTensor if the sizes differ.
    """
    shape, dims = tensor.shape, wanted or ()
    rows, inner, dims = (
        (shape[:1], shape[1:], dims[1:]) if batched else ((), shape, dims)
    )
    count = math.prod(inner)
    known = math.prod(dim for dim in dims if dim >= 0)
    if -1 in dims and known and count % known == 0:
        dims = tuple(count // known if dim < 0 else dim for dim in dims)
    if -1 in dims or math.prod(dims) != count:
        msg = f"{list(shape)} cannot be reshaped to {list(wanted or ())}"
        raise InvalidTensor(msg)
    return Tensor(tensor.data_type, (*rows, *dims), tensor.parts, tensor.nbytes)


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
