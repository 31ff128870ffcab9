"""The inputs of a call, in the types of the called model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from app.spec import ModelSpec, TensorSpec
from engine import InvalidInput, Tensor


def spec_of_call(spec: ModelSpec, given: Mapping[str, Tensor]) -> ModelSpec:
    """Return the model with these inputs: one of numbers that is given strings takes
    files, if the model decodes them (`ModelSpec.encoded`).
    """
    files = {
        name: item
        for name, item in spec.encoded.items()
        if name in given and given[name].data_type is item.data_type
    }
    if not files:
        return spec
    return replace(spec, inputs=tuple(files.get(t.name, t) for t in spec.inputs))


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
    """Return numbers in another type of the same kind. Raises InvalidInput for a number
    that this type cannot hold.
    """
    array, dtype = tensor.numpy(), want.type.dtype
    whole = array.dtype.kind in "iu" and dtype.kind in "iu"
    fits = whole or np.can_cast(array.dtype, dtype, "same_kind")
    if not fits or want.datatype in ("BF16", "BYTES"):  # NumPy casts any to objects
        raise InvalidInput(
            f"input {want.name!r} must be {want.datatype}, got {array.dtype.name}"
        )
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    differs = cast != array if whole else np.isinf(cast) & ~np.isinf(array)
    wrong = array[differs]
    if wrong.size:
        raise InvalidInput(
            f"input {want.name!r}: {wrong[0]} is out of range for {want.datatype}"
        )
    return Tensor.from_numpy(cast, want.data_type)
