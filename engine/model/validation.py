"""Check the inputs of a request and its memory for outputs before it is queued."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.errors import InvalidInput, UnknownAnchor
from engine.tensor import Array, DataDesc, Tensor
from engine.transport.anchor_ring import MAX_RANK


def check_inputs(
    model: str, descs: Mapping[str, DataDesc], inputs: Mapping[str, Tensor]
) -> None:
    """Check names, data types, shapes and sizes of a request.

    `descs` has the shapes that requests may have, in which -1 allows any size. Raises
    UnknownAnchor or InvalidInput with the expected and the given value.
    """
    for name in inputs:
        if name not in descs:
            raise UnknownAnchor(
                f"model {model!r} has no input {name!r}; it has {sorted(descs)}"
            )
    for name, desc in descs.items():
        tensor = inputs.get(name)
        if tensor is None:
            raise InvalidInput(
                f"input {name!r} is missing; expected {sorted(descs)}, "
                f"got {sorted(inputs)}"
            )
        _check(desc, tensor)


def check_outputs(descs: Iterable[DataDesc], memory: Mapping[str, Array]) -> None:
    """Check that every output has memory of the right size and type.

    Raises InvalidInput with the expected and the given value.
    """
    for desc in descs:
        array = memory.get(desc.name)
        if array is None:
            raise InvalidInput(
                f"memory for output {desc.name!r} is missing; got {sorted(memory)}"
            )
        if not array.flags.writeable:
            raise InvalidInput(f"the memory for output {desc.name!r} is read-only")
        dtype = desc.numpy_data_type()
        if array.dtype != dtype or not desc.accepts_shape(array.shape):
            expected = "of any shape" if desc.shape is None else list(desc.shape)
            raise InvalidInput(
                f"the memory for output {desc.name!r} is {array.dtype} "
                f"{list(array.shape)}, expected {dtype} {expected}"
            )


def _check(desc: DataDesc, tensor: Tensor) -> None:
    if tensor.data_type is not desc.data_type:
        raise InvalidInput(
            f"input {desc.name!r} must be {desc.data_type.name}, got "
            f"{tensor.data_type.name}"
        )
    if not desc.accepts_shape(tensor.shape) or len(tensor.shape) > MAX_RANK:
        expected = "any" if desc.shape is None else list(desc.shape)
        raise InvalidInput(
            f"input {desc.name!r} expects shape {expected}, got {list(tensor.shape)}"
        )
    size = item_size = desc.data_type.item_size
    for dim in tensor.shape:
        size *= dim
    if item_size and size != tensor.nbytes:
        raise InvalidInput(
            f"input {desc.name!r} of shape {list(tensor.shape)} takes {size} bytes, "
            f"got {tensor.nbytes}"
        )
