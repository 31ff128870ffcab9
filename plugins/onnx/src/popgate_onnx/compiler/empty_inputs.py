"""Operators that end the process of a device if their input has no elements.

ONNX Runtime aborts its process if a GRU or LSTM has no rows, or a GRU no steps, and
with some convolutions and `Unique`, so one request would end the device for all its
models. Here it is an error: a `Reshape` to the shape that the input has fails if the
product of its other sizes is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from popgate_onnx.compiler.graphs import all_graphs, label, unused_prefixes

#: The version of ONNX's operators since which `Reshape` has the shape as input.
_SINCE: Final = 5
_LAYERS: Final = {
    "GRU": (0, 0, -1),
    "LSTM": (-1, 0, 0),
    "DynamicQuantizeLSTM": (-1, 0, 0),
}
#: The fewest dimensions, apart from rows and channels, with which an operator aborts.
_CONVOLUTIONS: Final = {"Conv": 4, "ConvTranspose": 3}
_PREFIX: Final = "popgate_elements"


def guard_empty_inputs(model: Any) -> None:
    """Guard each node of `model` that aborts if its input has no elements."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if max(versions, default=0) < _SINCE:
        return
    prefixes = unused_prefixes(model.graph, _PREFIX)
    graphs = list(all_graphs(model.graph))
    ranks = {t.name: len(t.dims) for graph in graphs for t in graph.initializer}
    for graph in graphs:
        for position in reversed(range(len(graph.node))):
            node = graph.node[position]
            shape = _shape(node, ranks)
            if shape is None:
                continue
            prefix = next(prefixes)
            for one in reversed(list(_guards(node, shape, prefix))):
                graph.node.insert(position, one)
            node.input[0] = f"{prefix}checked"


def _shape(node: Any, ranks: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the shape to which the input is reshaped: its own, if the product of those
    that are not -1 is not 0. Empty if none may be 0. None for other nodes.
    """
    given = {a.name: a for a in node.attribute}
    if node.op_type == "Unique" and "axis" in given:
        return ()
    least = _CONVOLUTIONS.get(node.op_type)
    if least is None:
        return _LAYERS.get(node.op_type)
    rank = ranks.get(node.input[1], 0)
    if "kernel_shape" in given:
        rank = 2 + len(given["kernel_shape"].ints)
    return (-1, *[0] * (rank - 1)) if rank - 2 >= least else None


def _guards(node: Any, shape: tuple[int, ...], prefix: str) -> Iterator[Any]:
    """Yield the nodes that make `<prefix>checked`, which equals the input."""
    from onnx import helper, numpy_helper

    make, value = helper.make_node, node.input[0]
    names = [prefix + n for n in ("shape", "none", "is_none", "wrong", "wanted")]
    fixed, none, is_none, wrong, wanted = names
    if shape:
        wanted = fixed
        tensor = numpy_helper.from_array(np.array(shape, np.int64))
        yield make("Constant", [], [fixed], value=tensor)
    else:
        for name, number in ((none, 0), (wrong, -2)):
            tensor = numpy_helper.from_array(np.array(number, np.int64))
            yield make("Constant", [], [name], value=tensor)
        yield make("Shape", [value], [fixed])
        yield make("Equal", [fixed, none], [is_none])
        yield make("Where", [is_none, wrong, fixed], [wanted])
    # Errors of requests contain the name.
    name = f"input without elements of {label(node)}"
    yield make("Reshape", [value, wanted], [f"{prefix}checked"], name=name)
