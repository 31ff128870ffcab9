"""Largest number of rows that may run together without using too much memory.

A batch of a large network gains nothing that a few rows do not gain, and its values in
between take memory that the device keeps. So what a row takes is worked out from the
shapes, and batches are as large as a budget allows unless another size is asked for.
"""

from __future__ import annotations

from math import prod
from typing import Any

from engine.compiler.weights import data_type_of

MOST_BYTES = 256 << 20
"""What the inputs and outputs of one node may take in a batch."""
_UNKNOWN = 4
"""Bytes of an element whose type says nothing: unknown, or a string."""


def rows_within(model: Any, most: int, budget: int = MOST_BYTES) -> int:
    """Return how many rows fit into `budget`: a power of two from 1 to `most`.

    `model` is an ONNX model whose free first dimension counts rows. What is not known
    of its shapes counts nothing: other free dimensions are 1.
    """
    row = _largest_node(model)
    rows = 1
    while rows * 2 <= most and rows * 2 * row <= budget:
        rows *= 2
    return rows


def _largest_node(model: Any) -> int:
    """Return bytes of all that the largest node reads and writes for one row."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(_single_row(model), data_prop=True)
    except Exception:  # of many kinds; then nothing is known
        return 0
    graph = inferred.graph
    weights = {tensor.name for tensor in graph.initializer}
    sizes = {
        value.name: _bytes_of(value.type.tensor_type)
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.name not in weights
    }
    return max(
        (
            sum(sizes.get(name, 0) for name in {*node.input, *node.output})
            for node in graph.node
        ),
        default=0,
    )


def _single_row(model: Any) -> Any:
    """Return the model with one row, its outputs left to be worked out."""
    single = type(model)()
    single.CopyFrom(model)
    graph = single.graph
    rows = {
        value.type.tensor_type.shape.dim[0].dim_param
        for value in graph.input
        if value.type.tensor_type.shape.dim
    } - {""}
    for value in (*graph.input, *graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in rows:
                dim.dim_value = 1
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if dims and not dims[0].HasField("dim_value"):
            dims[0].dim_value = 1
    return single


def _bytes_of(tensor: Any) -> int:
    data_type = data_type_of(tensor.elem_type)
    size = data_type.item_size if data_type is not None else 0
    dims = [d.dim_value if d.dim_value > 0 else 1 for d in tensor.shape.dim]
    return prod(dims) * (size or _UNKNOWN)
