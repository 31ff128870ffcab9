"""Walk ONNX graphs: nodes, nested graphs, and the used names.

Protocol buffer messages have no Python types here, so they are `Any` throughout.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from engine.errors import InvalidModel

MAX_NESTING = 64


def graphs_of(node: Any) -> Iterator[Any]:
    """Yield the graphs inside the attributes of `node`."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(graph: Any, depth: int = 0) -> Iterator[Any]:
    """Yield every node of `graph` and of the graphs inside its nodes, in order."""
    if depth > MAX_NESTING:
        raise InvalidModel(f"graphs are nested more than {MAX_NESTING} deep")
    for node in graph.node:
        yield node
        for inner in graphs_of(node):
            yield from all_nodes(inner, depth + 1)


def all_graphs(graph: Any) -> Iterator[Any]:
    """Yield `graph` and every graph inside it."""
    yield graph
    for node in all_nodes(graph):
        yield from graphs_of(node)


def used_names(graph: Any) -> set[str]:
    """Return the names that a node reads or a graph returns, nested graphs included."""
    used = {name for node in all_nodes(graph) for name in node.input}
    for inner in all_graphs(graph):
        used.update(output.name for output in inner.output)
    return used


def unused_prefixes(graph: Any, prefix: str) -> Iterator[str]:
    """Yield `prefix` with numbers, so that no name in `graph` starts with them. The
    names are read once.
    """
    used = {name for node in all_nodes(graph) for name in node.output}
    for inner in all_graphs(graph):
        used.update(value.name for value in (*inner.input, *inner.initializer))
    for number in itertools.count():
        if not any(name.startswith(f"{prefix}_{number}_") for name in used):
            yield f"{prefix}_{number}_"


def set_nodes(graph: Any, nodes: Sequence[Any]) -> None:
    """Let `graph` consist of `nodes`, some of which it may contain already."""
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def label(node: Any) -> str:
    """Return the name of a node for a message."""
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{kind} node {node.name!r}" if node.name else f"{kind} node"


def attribute_int(node: Any, name: str, default: int) -> int:
    """Return an integer attribute of `node`."""
    for attribute in node.attribute:
        if attribute.name == name:
            return int(attribute.i)
    return default
