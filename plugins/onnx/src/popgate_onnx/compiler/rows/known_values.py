"""The constants in a model: values that it compares with make useful test data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from popgate_onnx.compiler.graphs import all_graphs, all_nodes

MAX_VALUES = 64
MAX_ELEMENTS = 16
"""The most elements of an examined tensor. Larger tensors are weights."""


def known_values(model: Any) -> list[float | str]:
    """Return up to `MAX_VALUES` numbers and strings from small constants."""
    found: dict[float | str, None] = {}
    for tensor in _constants(model):
        for value in tensor.reshape(-1).tolist():
            if isinstance(value, bytes):
                value = value.decode(errors="replace")
            if isinstance(value, int | float | str) and len(found) < MAX_VALUES:
                found[value if isinstance(value, str) else float(value)] = None
    return list(found)


def _constants(model: Any) -> Iterator[np.ndarray[Any, Any]]:
    from onnx import numpy_helper

    tensors = [t for graph in all_graphs(model.graph) for t in graph.initializer]
    nodes = [*all_nodes(model.graph), *(n for f in model.functions for n in f.node)]
    for node in nodes:
        if node.op_type == "Constant" and not node.domain:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    tensors.append(attribute.t)
                yield np.array([attribute.f, *attribute.floats], np.float64)
                yield np.array([attribute.i, *attribute.ints], np.int64)
    for tensor in tensors:
        count = int(np.prod(tensor.dims)) if tensor.dims else 1
        if 0 < count <= MAX_ELEMENTS and tensor.data_location != tensor.EXTERNAL:
            try:
                yield np.asarray(numpy_helper.to_array(tensor))
            except (TypeError, ValueError):
                continue  # its data is elsewhere or of an unsupported type
