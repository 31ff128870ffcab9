"""Frozen inputs on their way to the device process."""

from __future__ import annotations

from collections.abc import Mapping

from engine.anchors import describe
from engine.errors import InvalidInput
from engine.shared_memory import SharedMemory
from engine.tensor import Array, Tensor
from popef_io import Model, TensorType

#: Each frozen array begins at a multiple of this, ready to be used as it is.
_ALIGNMENT = 64


def pack_frozen(
    model: Model, frozen: Mapping[str, Array]
) -> tuple[list[list[object]], SharedMemory | None]:
    """The table for the `load` message and the segment that holds the data.

    InvalidInput where an array does not fit the input it is frozen over.
    """
    if not frozen:
        return [], None
    anchors = {a.name: a for a in model.metadata.anchors if a.type is TensorType.INPUT}
    types = {name: anchor.tensor_info.data_type for name, anchor in anchors.items()}
    tensors = {}
    for name, array in frozen.items():
        tensor = Tensor.from_numpy(array, types[name])
        expected = types[name].numpy_dtype
        if not expected.hasobject and array.dtype != expected:
            raise InvalidInput(
                f"frozen input {name!r} is {types[name].name}, got {array.dtype}"
            )
        desc = describe(anchors[name])
        if not desc.accepts_shape(tensor.shape):
            raise InvalidInput(
                f"frozen input {name!r} has shape {list(tensor.shape)}, the model "
                f"expects {list(desc.shape or ())}"
            )
        tensors[name] = tensor
    table: list[list[object]] = []
    offset = 0
    for name, tensor in tensors.items():
        row = [name, tensor.data_type.name, list(tensor.shape), offset, tensor.nbytes]
        table.append(row)
        offset += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    memory = SharedMemory.create("frozen", offset)
    for row, tensor in zip(table, tensors.values(), strict=True):
        start = row[3]
        assert isinstance(start, int)
        memory.view[start : start + tensor.nbytes] = tensor.buffer
    return table, memory
