"""Replace nodes of a model by others, by the types of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from popgate_onnx.compiler.graphs import (
    all_nodes,
    graphs_of,
    set_nodes,
    unused_prefixes,
)

Types: TypeAlias = Mapping[str, int]
"""The element types of values, by name."""


@dataclass(frozen=True, slots=True)
class NodeReplacement:
    """The nodes that `wants` accepts become those of `make`, which receives their type
    and a prefix for new names, if the type is one of `types`.

    The first `typed` inputs and the first output have this type.
    """

    wants: Callable[[Any], bool]
    types: frozenset[int]
    make: Callable[[Any, int, str], list[Any]]
    prefix: str
    typed: int = 1


def replace_nodes(model: Any, by: NodeReplacement) -> None:
    """Replace nodes of `model`, nested graphs included."""
    if any(by.wants(node) for node in all_nodes(model.graph)):
        names = unused_prefixes(model.graph, by.prefix)
        _replace(model.graph, _with_types(model), {}, by, names)


def without_weights(model: Any) -> Any:
    """Return the model with inputs in place of its weights, for onnx's own passes."""
    from onnx import helper

    light = type(model)(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = "light"
    graph.node.extend(model.graph.node)
    graph.output.extend(model.graph.output)
    given = {value.name: value for value in model.graph.input}
    for tensor in model.graph.initializer:
        given[tensor.name] = helper.make_tensor_value_info(
            tensor.name, tensor.data_type, tensor.dims
        )
    graph.input.extend(given.values())
    return light


def _with_types(model: Any) -> Any:
    """Return the graph with the types of its values, and without its weights."""
    import onnx

    light = without_weights(model)
    try:
        return onnx.shape_inference.infer_shapes(light).graph
    except Exception:  # onnx raises many kinds of errors
        return light.graph


def _replace(
    graph: Any, inferred: Any, outer: Types, by: NodeReplacement, names: Iterator[str]
) -> None:
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    types = {
        **outer,
        **{value.name: value.type.tensor_type.elem_type for value in values},
        **{tensor.name: tensor.data_type for tensor in inferred.initializer},
    }
    nodes = []
    for node, same in zip(graph.node, inferred.node, strict=True):
        for inner, inner_same in zip(graphs_of(node), graphs_of(same), strict=True):
            _replace(inner, inner_same, types, by, names)
        if by.wants(node):
            names_of_type = (*node.input[: by.typed], node.output[0])
            kind = by.types & {types.get(name, 0) for name in names_of_type}
            if kind:
                nodes += by.make(node, min(kind), next(names))
                continue
        nodes.append(node)
    if len(nodes) > len(graph.node):
        set_nodes(graph, nodes)
