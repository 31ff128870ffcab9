"""Largest number of rows that may run together without using too much memory.

Beyond a few rows, a larger batch of a large network gains nothing. Its intermediate
values take memory that the device keeps. So this module computes the memory of a row
from the shapes. Batches are as large as a memory budget allows, unless the user
requests another size.
"""

from __future__ import annotations

from math import prod
from typing import Any

from popgate_onnx.compiler.weights import data_type_of

MOST_BYTES = 256 << 20
"""Most memory for the inputs and outputs of one node in a batch."""
_UNKNOWN = 4
"""Bytes of an element of unknown size: an unknown type, or a string."""


def rows_within(model: Any, most: int, budget: int = MOST_BYTES) -> int:
    """Return how many rows fit into `budget`: a power of two from 1 to `most`.

    `model` is an ONNX model whose free first dimension counts rows. All other free
    dimensions count as 1, and values of unknown shape count nothing.
    """
    row = _largest_node(model)
    rows = 1
    while rows * 2 <= most and rows * 2 * row <= budget:
        rows *= 2
    return rows


def _largest_node(model: Any) -> int:
    """Return the bytes that the largest node reads and writes for one row."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(_single_row(model), data_prop=True)
    except Exception:  # onnx raises many kinds of errors
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
    """Return the model with one row. The shapes of its outputs are still to be
    inferred.
    """
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
