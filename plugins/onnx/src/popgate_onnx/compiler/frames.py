"""Frames of an STFT that do not end the process of a device.

In ONNX Runtime a frame of length 0 is a signal (SIGFPE), so one request would end the
device for all its models. Here it is an error, as a frame longer than the signal is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from popgate_onnx.compiler.graphs import all_graphs, set_nodes, unused_prefixes

_PREFIX: Final = "popgate_frame"
_TOO_LONG: Final = np.iinfo(np.int64).max
_SIGNAL, _STEP, _WINDOW, _LENGTH = range(4)


def guard_frames(model: Any) -> None:
    """Guard each STFT of `model` whose frames may have length 0."""
    fixed = frozenset(_fixed(model.graph))
    prefixes = unused_prefixes(model.graph, _PREFIX)
    for inner in all_graphs(model.graph):
        nodes: list[Any] = []
        for node in inner.node:
            if node.op_type == "STFT" and node.domain in ("", "ai.onnx"):
                given = [*node.input, "", ""][:4]
                if not fixed.intersection(given[_WINDOW:]):
                    nodes += _guarded(node, given, next(prefixes))
                    continue
            nodes.append(node)
        if len(nodes) > len(inner.node):
            set_nodes(inner, nodes)


def _fixed(graph: Any) -> Iterator[str]:
    """Yield the names of constants that have elements, none of which is a length 0."""
    from onnx import numpy_helper

    for inner in all_graphs(graph):
        found = {tensor.name: tensor for tensor in inner.initializer}
        for value in inner.input:
            found.pop(value.name, None)
        for node in inner.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                found[node.output[0]] = node.attribute[0].t
        for name, tensor in found.items():
            if 0 not in tensor.dims and (
                tensor.dims or numpy_helper.to_array(tensor).any()
            ):
                yield name


def _guarded(node: Any, given: list[str], prefix: str) -> list[Any]:
    """Return nodes for which a frame of length 0 is longer than any signal."""
    from onnx import helper, numpy_helper

    def constant(name: str, value: int) -> Any:
        tensor = numpy_helper.from_array(np.array(value, np.int64))
        return make("Constant", [], [prefix + name], value=tensor)

    make = helper.make_node
    step, length, is_zero, guarded = (
        prefix + name for name in ("step", "length", "is_zero", "guarded")
    )
    nodes = [constant("zero", 0), constant("too_long", _TOO_LONG)]
    if given[_LENGTH]:
        nodes.append(make("Cast", [given[_LENGTH]], [length], to=7))
    else:
        start = 0 if given[_WINDOW] else 1
        value = given[_WINDOW] or given[_SIGNAL]
        shape = make("Shape", [value], [prefix + "shape"], start=start, end=start + 1)
        nodes += [shape, make("Squeeze", [prefix + "shape"], [length])]
    changed = type(node).FromString(node.SerializeToString())
    del changed.input[:]
    changed.input.extend([given[_SIGNAL], step, given[_WINDOW], guarded])
    return [
        *nodes,
        make("Cast", [given[_STEP]], [step], to=7),
        make("Equal", [length, prefix + "zero"], [is_zero]),
        make("Where", [is_zero, prefix + "too_long", length], [guarded]),
        changed,
    ]
