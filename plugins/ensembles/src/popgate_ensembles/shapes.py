"""Convert tensors between the models of an ensemble."""

from __future__ import annotations

import math

from app.errors import InvalidTensor
from app.serving.tensor_fit import common_shape
from app.spec import ModelSpec
from engine import Tensor
from popgate_ensembles.graph import Face


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
        raise InvalidTensor(f"{list(shape)} cannot be reshaped to {list(wanted or ())}")
    return Tensor(tensor.data_type, (*rows, *dims), tensor.parts, tensor.nbytes)
