"""Frozen inputs: constants that replace the values of requests or of the file."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import InvalidInput
from engine.model.anchors import describe
from engine.tensor import Array, Tensor
from popef_io import Model, TensorType


def frozen_tensors(model: Model, frozen: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return the arrays as tensors of the inputs that they replace.

    Raises InvalidInput if an array does not fit its input.
    """
    anchors = {a.name: a for a in model.metadata.anchors if a.type is TensorType.INPUT}
    tensors = {}
    for name, array in frozen.items():
        data_type = anchors[name].tensor_info.data_type
        tensor = Tensor.from_numpy(array, data_type)
        expected = data_type.numpy_dtype
        if not expected.hasobject and array.dtype != expected:
            raise InvalidInput(
                f"frozen input {name!r} must be {data_type.name}, got {array.dtype}"
            )
        desc = describe(anchors[name])
        if not desc.accepts_shape(tensor.shape):
            raise InvalidInput(
                f"frozen input {name!r} has shape {list(tensor.shape)}, the model "
                f"expects {list(desc.shape or ())}"
            )
        tensors[name] = tensor
    return tensors
