"""Examples of requests that only the document shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from app.api.examples import (
    EXAMPLE_VALUES,
    MAX_EXAMPLE_ELEMENTS,
    example_shape,
    with_parameters,
)
from app.spec import ModelSpec, TensorSpec


def example_oip_request(
    spec: ModelSpec, fill: int = 1, parameters: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return the example in the protocol's form (`inputs` as a list of tensors)."""
    inputs = []
    left = MAX_EXAMPLE_ELEMENTS
    for t in spec.inputs:
        shape = example_shape(spec, t, fill)
        left -= math.prod(shape)
        if left < 0:
            return None
        data = [EXAMPLE_VALUES[t.type.kind]] * math.prod(shape)
        inputs.append(
            {"name": t.name, "shape": shape, "datatype": t.datatype, "data": data}
        )
    return with_parameters(parameters) | {"inputs": inputs}


def is_large(spec: ModelSpec, tensors: Iterable[TensorSpec]) -> bool:
    """Return whether even one row is too long to show on a page or to type."""
    sizes = (math.prod(example_shape(spec, tensor, 1)) for tensor in tensors)
    return sum(sizes) > MAX_EXAMPLE_ELEMENTS
