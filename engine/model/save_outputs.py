"""The caller's memory for the data that save programs deliver."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine.errors import InvalidConfig, InvalidInput
from engine.model.anchors import describe
from engine.tensor import Array
from popef_io import Model, TensorType


class SaveOutputs:
    """Arrays by replica and tensor name, checked when the runner is made.

    Raises InvalidConfig for a name that save programs do not deliver. Also raises it
    for an array that is read-only or has another type or shape.
    """

    def __init__(
        self, model: Model, targets: Mapping[int, Mapping[str, Array]]
    ) -> None:
        self._targets = targets
        save = set(model.metadata.program_flow.save)
        descs = {
            anchor.name: describe(anchor)
            for anchor in model.metadata.anchors
            if anchor.type is TensorType.OUTPUT
            and (not anchor.programs or not save.isdisjoint(anchor.programs))
        }
        for replica, arrays in targets.items():
            for name, array in arrays.items():
                what = f"replica_to_save_programs_outputs[{replica}][{name!r}]"
                desc = descs.get(name)
                if desc is None:
                    raise InvalidConfig(
                        f"{what}: the save programs have no output {name!r}; they "
                        f"have {sorted(descs)}"
                    )
                if not isinstance(array, np.ndarray) or not array.flags.writeable:
                    raise InvalidConfig(f"{what} must be a writable numpy array")
                if array.dtype != desc.numpy_data_type() or not desc.accepts_shape(
                    array.shape
                ):
                    raise InvalidConfig(
                        f"{what} must be {desc.numpy_data_type()}"
                        f"{list(desc.shape or ())}, got {array.dtype}"
                        f"{list(array.shape)}"
                    )

    def fill(self, replica: int, saved: Mapping[str, Array]) -> None:
        """Copy the saved data into the caller's arrays for this replica."""
        for name, target in self._targets.get(replica, {}).items():
            if name in saved:
                try:
                    np.copyto(target, saved[name], casting="no")
                except (TypeError, ValueError) as error:
                    raise InvalidInput(f"saved output {name!r}: {error}") from None

    def __repr__(self) -> str:
        return f"<SaveOutputs for replicas {sorted(self._targets)}>"
