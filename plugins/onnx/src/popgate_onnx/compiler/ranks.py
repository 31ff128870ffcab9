"""Operators that end the process of a device if an input has too few dimensions.

ONNX Runtime aborts its process there, so one request to a model whose shapes are not
stated would end the device for all its models. Here it is an error: a `Concat` of one
tensor fails if the tensor lacks the axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from popgate_onnx.compiler.graphs import all_graphs, label, set_nodes, unused_prefixes

#: The fewest dimensions of inputs, by the input's position.
_LEAST: Final = {
    "DFT": {0: 1},
    "GridSample": {0: 1},
    "MaxRoiPool": {0: 4, 1: 2},
    "Multinomial": {0: 2},
    "ReverseSequence": {0: 2},
    "RoiAlign": {0: 2, 1: 2},
    "STFT": {0: 2, 2: 1},
}
_PREFIX: Final = "popgate_rank"


def guard_ranks(model: Any) -> None:
    """Guard each node of `model` that aborts if an input has too few dimensions."""
    prefixes = unused_prefixes(model.graph, _PREFIX)
    for graph in all_graphs(model.graph):
        ranks = dict(_stated(graph))
        nodes: list[Any] = []
        for node in graph.node:
            is_standard = node.domain in ("", "ai.onnx")
            least = _LEAST.get(node.op_type, {}) if is_standard else {}
            for position, rank in least.items():
                name = "".join(node.input[position : position + 1])
                if name and ranks.get(name, 0) < rank:
                    guarded = f"{next(prefixes)}checked"
                    nodes.append(_guard(node, position, rank, guarded))
                    node.input[position] = guarded
            nodes.append(node)
        if len(nodes) > len(graph.node):
            set_nodes(graph, nodes)


def _stated(graph: Any) -> Iterator[tuple[str, int]]:
    """Yield the tensors of `graph` whose number of dimensions is stated."""
    for tensor in graph.initializer:
        yield tensor.name, len(tensor.dims)
    for value in (*graph.value_info, *graph.input):
        yield value.name, len(value.type.tensor_type.shape.dim)


def _guard(node: Any, position: int, rank: int, guarded: str) -> Any:
    from onnx import helper

    # Errors of requests contain the name.
    name = f"input {position} with fewer than {rank} dimensions of {label(node)}"
    axis = rank - 1 or -1
    return helper.make_node(
        "Concat", [node.input[position]], [guarded], name=name, axis=axis
    )
