"""Move large initializers out of a graph into the container."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidModel
from engine.programs.onnx_session import onnx_number
from engine.tensor import Array
from popef_io import DataType, TensorInfo
from popgate_onnx.compiler.external_data import ExternalFiles
from popgate_onnx.compiler.graphs import all_graphs, used_names

_TYPES = {onnx_number(t): t for t in DataType if onnx_number(t) is not None}

_INDEX_TYPES = frozenset({DataType.S32, DataType.S64})
INDICES_FROM = 64 * 1024
"""From this many bytes on, 32 and 64 bit integers are data. Smaller ones may be shapes,
axes or sizes, which ONNX Runtime needs inside the model to infer shapes.
"""

MAX_INSIDE = (1 << 31) - (1 << 20)
"""Bytes that fit into one protocol buffer message, with room for the rest."""


@dataclass(frozen=True, slots=True)
class Weight:
    """An initializer that is no longer in the graph."""

    name: str
    info: TensorInfo
    data: Array
    """Its elements, with BF16 as uint16. A view of memory that does not change."""

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def data_type_of(number: int) -> DataType | None:
    """Return the engine's data type for a TensorProto.DataType; None if
    there is none.
    """
    return _TYPES.get(number)


def drop_unused(graph: Any) -> None:
    """Remove initializers that no node reads, because ONNX Runtime would drop them. Of
    several with one name it uses the last one.
    """
    used = used_names(graph)
    for index in reversed(range(len(graph.initializer))):
        name = graph.initializer[index].name
        if name not in used:
            del graph.initializer[index]
        used.discard(name)


def take_inside(model: Any, files: ExternalFiles) -> None:
    """Move the data of all tensors in external files into the model."""
    for tensor in _all_tensors(model):
        _inline(tensor, files)


def take_out(model: Any, files: ExternalFiles, least: int) -> list[Weight]:
    """Remove the data of initializers of at least `least` bytes from `model`.

    They stay as initializers with external data at a location that does not exist.
    Other external data moves into the graph. The weights keep the model's order.
    """
    weights = []
    for number, tensor in enumerate(model.graph.initializer):
        weight = _weight(tensor, files, least)
        if weight is not None:
            weights.append(weight)
            _empty(tensor, f"weight-{number}", weight.nbytes)
    names = {weight.name for weight in weights}
    for tensor in _all_tensors(model):
        if tensor.name not in names:
            _inline(tensor, files)
    return weights


def _weight(tensor: Any, files: ExternalFiles, least: int) -> Weight | None:
    data_type = data_type_of(tensor.data_type)
    shape = tuple(tensor.dims)
    if data_type is None or min(shape, default=1) < 0:
        return None
    size = prod(shape) * data_type.item_size  # 0 for strings
    if size < max(least, 1) or not tensor.name:
        return None
    if data_type in _INDEX_TYPES and size < INDICES_FROM:
        return None
    raw = _raw(tensor, files, size)
    if raw is None:
        return None  # inconsistent: ONNX Runtime will say how
    data = raw.view(data_type.numpy_dtype).reshape(shape)
    return Weight(tensor.name, TensorInfo(shape, data_type), data)


def _raw(tensor: Any, files: ExternalFiles, size: int) -> npt.NDArray[np.uint8] | None:
    if tensor.data_location == tensor.EXTERNAL:
        return files.bytes_of(tensor, size)
    if tensor.HasField("raw_data"):
        raw = np.frombuffer(tensor.raw_data, np.uint8)
        return raw if raw.nbytes == size else None
    from onnx import numpy_helper

    try:
        array = np.ascontiguousarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError):
        return None
    flat = array.reshape(-1).view(np.uint8)
    return flat if flat.nbytes == size else None


def _empty(tensor: Any, location: str, size: int) -> None:
    kept = type(tensor)()
    kept.name, kept.data_type, kept.doc_string = (
        tensor.name,
        tensor.data_type,
        tensor.doc_string,
    )
    kept.dims.extend(tensor.dims)
    kept.data_location = kept.EXTERNAL
    for key, value in (("location", location), ("offset", 0), ("length", size)):
        entry = kept.external_data.add()
        entry.key, entry.value = key, str(value)
    tensor.CopyFrom(kept)


def _inline(tensor: Any, files: ExternalFiles) -> None:
    if tensor.data_location != tensor.EXTERNAL:
        return
    data_type = data_type_of(tensor.data_type)
    size = None
    if data_type is not None and data_type.item_size:
        size = prod(tensor.dims) * data_type.item_size
    raw = files.bytes_of(tensor, size)
    if raw.nbytes > MAX_INSIDE:
        raise InvalidModel(
            f"tensor {tensor.name!r} has {raw.nbytes} bytes; the graph must hold it, "
            f"and the limit is {MAX_INSIDE} bytes"
        )
    tensor.raw_data = raw.tobytes()
    del tensor.external_data[:]
    tensor.ClearField("data_location")


def _all_tensors(model: Any) -> Iterator[Any]:
    for graph in all_graphs(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield sparse.values
            yield sparse.indices
        for node in graph.node:
            yield from _tensors_of(node)
    for function in model.functions:
        for node in function.node:
            yield from _tensors_of(node)


def _tensors_of(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
