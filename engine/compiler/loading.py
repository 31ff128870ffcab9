"""Loads a prepared model into ONNX Runtime, and explains why that failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from engine.compiler.graphs import all_nodes, label
from engine.compiler.weights import Weight, put_back_indices
from engine.errors import InvalidModel
from engine.executable import Graph
from engine.onnx_session import OnnxSession

_NEEDS_DATA = "external tensor"
"""In what ONNX Runtime says where it needs the data of a weight to work out shapes."""
_UNKNOWN_OPERATOR = re.compile(r"(\S*):(\w+)\(-?\d+\) is not a registered")
_UNKNOWN_VALUE = re.compile(r"Node input '(.*?)' is not a graph input")
_NEW_OPSET = re.compile(r"Opset (\d+) is under development")


def load(
    model: Any, name: str, weights: list[Weight], threads: int
) -> tuple[Graph, OnnxSession, list[Weight]]:
    """The graph called `name`, its session, and the weights that are outside of it.

    Those may be fewer than were given. Raises InvalidModel, naming the node.
    """
    try:
        return (*_try(model, name, weights, threads), weights)
    except InvalidModel as error:
        if _NEEDS_DATA not in str(error):
            raise _explained(model, error) from None
        fewer = put_back_indices(model, weights)
        if len(fewer) == len(weights):
            raise _explained(model, error) from None
    try:
        return (*_try(model, name, fewer, threads), fewer)
    except InvalidModel as error:
        raise _explained(model, error) from None


def _try(
    model: Any, name: str, weights: Sequence[Weight], threads: int
) -> tuple[Graph, OnnxSession]:
    try:
        serialized = model.SerializeToString(deterministic=True)
    except ValueError as error:  # more than protocol buffers can hold
        raise InvalidModel(
            f"the graph is larger than 2 GiB even without its large weights ({error})"
        ) from None
    graph = Graph(
        name,
        serialized,
        weights=tuple(weight.name for weight in weights),
        opsets={o.domain: o.version for o in model.opset_import},
    )
    data = {w.name: (w.data, w.info.data_type) for w in weights}
    return graph, OnnxSession(serialized, data, threads=threads)


def _explained(model: Any, error: InvalidModel) -> InvalidModel:
    """`error` with the node that it is about, where ONNX Runtime leaves that out."""
    text = str(error)
    if found := _NEW_OPSET.search(text):
        domains = [o.domain for o in model.opset_import if str(o.version) == found[1]]
        which = repr(domains[0]) if domains and domains[0] else "ONNX"
        return InvalidModel(
            f"the model needs operator set {found[1]} of {which}, which is newer than "
            "this ONNX Runtime"
        )
    node = None
    if found := _UNKNOWN_OPERATOR.search(text):
        wanted = (found[1].removeprefix("ai.onnx") or "", found[2])
        node = _first(model, lambda n: (n.domain, n.op_type) == wanted) or _first(
            model, lambda n: n.op_type == wanted[1]
        )
    elif found := _UNKNOWN_VALUE.search(text):
        wanted_value = found[1]
        node = _first(model, lambda n: wanted_value in n.input)
    return error if node is None else InvalidModel(f"{text} ({label(node)})")


def _first(model: Any, fits: Any) -> Any:
    return next((node for node in all_nodes(model.graph) if fits(node)), None)
