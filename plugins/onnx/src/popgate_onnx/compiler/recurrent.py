"""Recurrent layers that do not end the process of a device.

ONNX Runtime aborts its process if a GRU or LSTM has no rows, or a GRU no steps, so one
request would end the device for all its models. Here it is an error: a `Reshape` to the
shape that the input has fails if the product of its other sizes is 0.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from popgate_onnx.compiler.graphs import all_graphs, all_nodes

#: The version of ONNX's operators since which `Reshape` has the shape as input.
_SINCE: Final = 5
_SHAPES: Final = {
    "GRU": (0, 0, -1),
    "LSTM": (-1, 0, 0),
    "DynamicQuantizeLSTM": (-1, 0, 0),
}


def guard_recurrent_layers(model: Any) -> None:
    """Guard each GRU and LSTM of `model` against inputs without elements."""
    from onnx import helper, numpy_helper

    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if max(versions, default=0) < _SINCE:
        return
    used = {name for node in all_nodes(model.graph) for name in node.output}
    for inner in all_graphs(model.graph):
        for position in reversed(range(len(inner.node))):
            node = inner.node[position]
            shape = _SHAPES.get(node.op_type)
            if shape is None or not node.output:
                continue
            name = f"popgate_recurrent_{len(used)}"
            while {name, f"{name}_shape"} & used:
                name += "_"
            used |= {name, f"{name}_shape"}
            tensor = numpy_helper.from_array(np.array(shape, np.int64))
            make = helper.make_node
            reshape = make("Reshape", [node.input[0], f"{name}_shape"], [name])
            node.input[0] = name
            inner.node.insert(position, reshape)
            inner.node.insert(
                position, make("Constant", [], [f"{name}_shape"], value=tensor)
            )
