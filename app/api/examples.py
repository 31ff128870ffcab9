"""Requests that a model answers, made from the description of its inputs.

They fill the documentation page. They are the values of the warm-up
(app/repository/warmup.py): ones, with free dimensions that the model accepts. If a
model needs other values, its config.toml (`[example]`) or its file sets them. In the
file they are the metadata property `popgate.example`, JSON of values by input. Such
values are used unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.repository.records import LoadedModel
from app.serving.stateful import StatefulScheduler
from app.spec import ModelSpec, TensorSpec

# An example with more numbers than this does not help a reader.
MAX_EXAMPLE_ELEMENTS = 2_000

#: The synthetic value of each kind of element.
EXAMPLE_VALUES: Mapping[str, Any] = {"f": 1.0, "i": 1, "u": 1, "b": True, "s": "1"}


def example_parameters(loaded: LoadedModel) -> Mapping[str, Any]:
    """Return the parameters that a model requires."""
    scheduler = loaded.scheduler
    if isinstance(scheduler, StatefulScheduler):
        return scheduler.example_parameters
    return {}


def example_request(
    spec: ModelSpec,
    given: Mapping[str, Any] | None = None,
    fill: int = 1,
    parameters: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return a body in the short form (`inputs` as a mapping); None if it becomes too
    long.

    `given` are values by input; `fill` is the size of free dimensions; `parameters` are
    those of `example_parameters`.
    """
    given = given or {}
    shapes = example_shapes(spec, fill)
    # A dimension of 0 hides no others, as the lists around it are written too.
    made = (math.prod(d or 1 for d in shapes[n]) for n in shapes if n not in given)
    if sum(made) > MAX_EXAMPLE_ELEMENTS:
        return None
    return with_parameters(parameters) | {
        "inputs": {
            t.name: given.get(
                t.name, _nested(shapes[t.name], EXAMPLE_VALUES[t.type.kind])
            )
            for t in spec.inputs
        }
    }


def example_shapes(spec: ModelSpec, fill: int = 1) -> dict[str, list[int]]:
    """Return the shapes of synthetic values, by input."""
    return {t.name: example_shape(spec, t, fill) for t in spec.inputs}


def with_parameters(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the beginning of a body with these parameters."""
    return {"parameters": dict(parameters)} if parameters else {}


def shown_shape(spec: ModelSpec, tensor: TensorSpec) -> list[int]:
    """Return the shape as metadata shows it: -1 is free, and so is the batch dimension.

    A tensor of any rank is shown as ``[-1]``, because the protocol cannot express it.
    """
    if tensor.shape is None:
        return [-1]
    shape = list(tensor.shape)
    if spec.is_batched and shape:
        shape[0] = -1
    return shape


def example_shape(spec: ModelSpec, tensor: TensorSpec, fill: int) -> list[int]:
    """Return the shape of synthetic values of one tensor."""
    shape = [fill if dim < 0 else dim for dim in shown_shape(spec, tensor)]
    if spec.is_batched and tensor.shape:
        shape[0] = 1
    if tensor.multiple > 1:
        shape[0] = tensor.multiple
    return shape


def _nested(shape: list[int], value: Any) -> Any:
    if not shape:
        return value
    return [_nested(shape[1:], value) for _ in range(shape[0])]
