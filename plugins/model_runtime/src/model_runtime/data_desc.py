"""`DataDesc`: the description of a model's tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np

import engine
from model_runtime.members import Member, Struct
from popef import DataType
from popef.taking import Text, expected, number, numbers, text, truth


def _data_type(value: DataType) -> DataType:
    return expected(value, DataType)


class _Shape(Member[list[int], Iterable[SupportsIndex]]):
    """A member whose value is a new list at each access."""

    def __get__(self, owner: Any, kind: type) -> Any:
        held = super().__get__(owner, kind)
        return held if owner is None else list(held)


class DataDesc(Struct):
    """Name, size, shape and type of an input or output."""

    __slots__ = ()

    name = Member[str, Text](text, "", "The name of the tensor.")
    size_in_bytes = Member[int, SupportsIndex](
        number, 0, "Bytes of the tensor. In PopGate: -1 if a dimension is free."
    )
    shape = _Shape(
        numbers,
        (),
        "The dimensions, as a new list at each access; assign a list to "
        "change them. In PopGate: -1 is a size that is known only at run time.",
    )
    data_type = Member(_data_type, DataType.BOOL, "The type of one element.")
    popef_contains_tensor_data = Member[bool, Any](
        truth, False, "Whether the file has data for the tensor."
    )

    def __init__(
        self,
        name: Text,
        size_in_bytes: SupportsIndex,
        shape: Iterable[SupportsIndex],
        data_type: DataType,
        popef_contains_tensor_data: bool = False,
    ) -> None:
        super().__init__(
            name=name,
            size_in_bytes=size_in_bytes,
            shape=shape,
            data_type=data_type,
            popef_contains_tensor_data=popef_contains_tensor_data,
        )

    def numpy_data_type(self) -> np.dtype[Any]:
        """Return the numpy type that carries its elements."""
        return self.data_type.numpy_dtype

    @classmethod
    def from_engine(cls, desc: engine.DataDesc) -> DataDesc:
        """Make the description from the engine's (an addition of PopGate)."""
        return cls(
            desc.name,
            desc.size_in_bytes,
            desc.shape or (),
            desc.data_type,
            desc.popef_contains_tensor_data,
        )

    def __repr__(self) -> str:
        return f"<DataDesc {self.name!r} {self.data_type.name}{self.shape}>"


InputDesc = DataDesc
OutputDesc = DataDesc
