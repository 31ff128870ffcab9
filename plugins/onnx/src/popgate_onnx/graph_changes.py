"""The changes of a configuration, made to an `onnx.ModelProto`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import numpy.typing as npt
import orjson

from app.config.reshape import Reshape, Reshapes
from app.plugins import MODEL_FORMATS, plugins
from app.repository.compilers import GraphChanges
from popgate_onnx.reshapes import apply_reshapes

#: The name of the first dimension of all inputs if they share no name.
ROWS = "rows"

_Dims: TypeAlias = tuple[int | str, ...]


def changes_of(message: Mapping[str, Any]) -> GraphChanges:
    """Make the object from JSON: the inverse of `dataclasses.asdict`."""
    reshapes = message["reshapes"]
    return GraphChanges(
        Reshapes(
            tuple(map(_reshape, reshapes["inputs"])),
            tuple(map(_reshape, reshapes["outputs"])),
            str(reshapes["label"]),
        ),
        bool(message["counts_rows"]),
        tuple(message["optional"]),
        message["format"],
        message["recipe"],
        tuple((str(name), float(pad)) for name, pad in message["ragged"]),
    )


def _reshape(message: Mapping[str, Any]) -> Reshape:
    dims, shape = tuple(message["dims"]), tuple(message["shape"])
    return Reshape(str(message["name"]), dims, shape, bool(message["batched"]))


def are_of_the_graph(changes: GraphChanges) -> bool:
    """Return whether the model itself must be changed (`apply_changes`)."""
    return bool(changes.reshapes or changes.optional or changes.format)


def row_shapes(changes: GraphChanges, model: Any) -> Mapping[str, _Dims]:
    """Return new shapes of inputs, so that their rows have one name; empty if they
    already have.

    `model` is an `onnx.ModelProto`, with or without its data.
    """
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [v for v in graph.input if v.name not in constants]
    shapes = {v.name: v.type.tensor_type.shape.dim for v in inputs}
    if not changes.counts_rows or any(not dims for dims in shapes.values()):
        return {}
    firsts = {_dim(dims[0]) for dims in shapes.values()}
    if len(firsts) == 1 and firsts != {-1}:
        return {}
    if any(isinstance(first, int) and first >= 0 for first in firsts):
        return {}
    return {name: (ROWS, *map(_dim, dims[1:])) for name, dims in sorted(shapes.items())}


def apply_changes(
    changes: GraphChanges, model: Any
) -> tuple[dict[str, str], dict[str, str]]:
    """Change an `onnx.ModelProto`, which has its data.

    Inputs and outputs may be renamed in the graph. Returns their outside names by their
    names in the graph. Raises ValueError for a tensor that does not exist.
    """
    if changes.format:
        plugins(MODEL_FORMATS)[changes.format].convert(
            model, orjson.loads(changes.recipe)
        )
    graph = model.graph
    for tensor in [t for t in graph.initializer if t.name in changes.optional]:
        graph.initializer.remove(tensor)
    shapes = row_shapes(changes, model)
    for value in graph.input:
        if value.name in shapes:
            value.type.tensor_type.shape.dim[0].dim_param = ROWS
    if shapes:
        del graph.value_info[:]  # it may use the old names
    return apply_reshapes(changes.reshapes, model)


def _dim(dim: Any) -> int | str:
    if dim.dim_param:
        return str(dim.dim_param)
    return int(dim.dim_value) if dim.HasField("dim_value") else -1


def input_defaults(
    model: Any, names: Collection[str]
) -> dict[str, npt.NDArray[Any] | None]:
    """Return the defaults of the inputs `names` that a request may omit.

    Each default is the model's own value, or None if nothing in the model uses the
    input. Other inputs are left out. `model` has its data.
    """
    from onnx import numpy_helper

    graph = model.graph
    given = {tensor.name: tensor for tensor in graph.initializer}
    used = set(_names_used(graph))
    found: dict[str, npt.NDArray[Any] | None] = {}
    for value in graph.input:
        if value.name not in names:
            continue
        if value.name in given:
            found[value.name] = numpy_helper.to_array(given[value.name])
        elif value.name not in used:
            found[value.name] = None
    return found


def _names_used(graph: Any) -> Iterator[str]:
    """Yield the values that are read in a graph, or in one within it."""
    for value in graph.output:
        yield value.name
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.HasField("g") else []
            for graph_within in (*inner, *attribute.graphs):
                yield from _names_used(graph_within)
