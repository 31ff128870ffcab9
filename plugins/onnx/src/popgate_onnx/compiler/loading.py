"""Loads a prepared model into ONNX Runtime, and explains a failure to load."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from engine.errors import InvalidModel
from engine.programs.executable import Graph
from engine.programs.onnx_session import OnnxSession
from popgate_onnx.compiler.graphs import all_nodes, label
from popgate_onnx.compiler.weights import Weight, drop_unused

_UNKNOWN_OPERATOR = re.compile(r"(\S*):(\w+)\(-?\d+\) is not a registered")
_UNKNOWN_VALUE = re.compile(r"Node input '(.*?)' is not a graph input")
_NEW_OPSET = re.compile(r"Opset (\d+) is under development")


def load_graph(
    model: Any, name: str, weights: Sequence[Weight], threads: int
) -> tuple[Graph, OnnxSession]:
    """Return the graph called `name` and its session. `model` does not contain the data
    of `weights`.

    Raises InvalidModel, naming the node.
    """
    try:
        return _try(model, name, weights, threads)
    except InvalidModel as error:
        raise _explained(model, weights, error) from None


def _try(
    model: Any, name: str, weights: Sequence[Weight], threads: int
) -> tuple[Graph, OnnxSession]:
    try:
        serialized = model.SerializeToString(deterministic=True)
    except ValueError as error:  # more than protocol buffers can hold
        raise InvalidModel(
            f"the graph exceeds 2 GiB even without its large weights ({error})"
        ) from None
    graph = Graph(
        name,
        serialized,
        weights=tuple(weight.name for weight in weights),
        opsets={o.domain: o.version for o in model.opset_import},
    )
    data = {w.name: (w.data, w.info.data_type) for w in weights}
    return graph, OnnxSession(serialized, data, threads=threads)


def _explained(
    model: Any, weights: Sequence[Weight], error: InvalidModel
) -> InvalidModel:
    """Return `error`, and name the node if ONNX Runtime did not."""
    text = str(error)
    if found := _NEW_OPSET.search(text):
        domains = [o.domain for o in model.opset_import if str(o.version) == found[1]]
        which = repr(domains[0]) if domains and domains[0] else "ONNX"
        return InvalidModel(
            f"the model needs operator set {found[1]} of {which}, which this version "
            "of ONNX Runtime does not support; export it with an older operator set"
        )
    if found := _UNKNOWN_OPERATOR.search(text):
        wanted = (found[1], found[2])
        node = _first(model, lambda n: (n.domain or "ai.onnx", n.op_type) == wanted)
    elif found := _UNKNOWN_VALUE.search(text):
        value = found[1]
        node = _first(model, lambda n: value in n.input)
    elif _names_a_node(model, text):
        node = None
    else:
        node = _culprit(model, weights, text)
    return error if node is None else InvalidModel(f"{text} ({label(node)})")


def _names_a_node(model: Any, text: str) -> bool:
    return any(
        quoted in text
        for node in all_nodes(model.graph)
        for quoted in (f"({node.name})", f"'{node.name}'", f'"{node.name}"')
    )


def _culprit(model: Any, weights: Sequence[Weight], text: str) -> Any:
    """Return the first node that makes the model fail in this way.

    Nodes are in the order of their computation, so the first N nodes are a model too. A
    binary search finds N.
    """
    count = len(model.graph.node)
    if not _fails(model, weights, count, text):
        return None
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if _fails(model, weights, middle, text):
            bad = middle
        else:
            good = middle
    return model.graph.node[bad - 1]


def _fails(model: Any, weights: Sequence[Weight], count: int, text: str) -> bool:
    """Return whether the first `count` nodes alone fail with `text`."""
    part = type(model)()
    part.CopyFrom(model)
    del part.graph.node[count:]
    del part.graph.output[:]
    for name in dict.fromkeys(n for node in part.graph.node for n in node.output if n):
        part.graph.output.add().name = name
    drop_unused(part.graph)
    left = {tensor.name for tensor in part.graph.initializer}
    try:
        _try(part, "part", [w for w in weights if w.name in left], 1)
    except InvalidModel as error:
        return str(error) == text
    return False


def _first(model: Any, fits: Any) -> Any:
    return next((node for node in all_nodes(model.graph) if fits(node)), None)
