"""Requests that a model answers, made from what it says it takes.

They fill the documentation page. Where a dimension is free it is 1; the values are
zeros, false, or a short text. A model that needs others says so in its config.toml
(`[example]`), which is taken as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.spec import ModelSpec, TensorSpec

# A page with more numbers than this in one example is no help to a reader.
MAX_EXAMPLE_ELEMENTS = 20_000

_VALUES: Mapping[str, Any] = {"f": 0.0, "i": 0, "u": 0, "b": False, "s": "text"}


def example_request(
    spec: ModelSpec, given: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """A body in the short form (`inputs` as a mapping); None where it gets too long."""
    given = given or {}
    shapes = {t.name: _shape(spec, t) for t in spec.inputs}
    if sum(math.prod(shape) for shape in shapes.values()) > MAX_EXAMPLE_ELEMENTS:
        return None
    return {
        "inputs": {
            t.name: given.get(t.name, _nested(shapes[t.name], _VALUES[t.type.kind]))
            for t in spec.inputs
        }
    }


def example_oip_request(spec: ModelSpec) -> dict[str, Any] | None:
    """The same in the protocol's form (`inputs` as a list of tensors)."""
    inputs = []
    for t in spec.inputs:
        shape = _shape(spec, t)
        if math.prod(shape) > MAX_EXAMPLE_ELEMENTS:
            return None
        data = [_VALUES[t.type.kind]] * math.prod(shape)
        inputs.append(
            {"name": t.name, "shape": shape, "datatype": t.datatype, "data": data}
        )
    return {"inputs": inputs}


def shown_shape(spec: ModelSpec, tensor: TensorSpec) -> list[int]:
    """The shape as metadata shows it: -1 is free, and so is the batch dimension.

    A tensor of any rank is shown as ``[-1]``: the protocol has no word for it.
    """
    if tensor.shape is None:
        return [-1]
    shape = list(tensor.shape)
    if spec.is_batched and shape:
        shape[0] = -1
    return shape


def _shape(spec: ModelSpec, tensor: TensorSpec) -> list[int]:
    shape = [1 if dim < 0 else dim for dim in shown_shape(spec, tensor)]
    if tensor.multiple > 1:
        shape[0] = tensor.multiple
    return shape


def _nested(shape: list[int], value: Any) -> Any:
    if not shape:
        return value
    return [_nested(shape[1:], value) for _ in range(shape[0])]
