"""`DataDesc`: what a tensor of a model is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from popef import DataType

import engine


class DataDesc:
    """Name, size, shape and type of an input or output."""

    __slots__ = (
        "_shape",
        "data_type",
        "name",
        "popef_contains_tensor_data",
        "size_in_bytes",
    )

    def __init__(
        self,
        name: str,
        size_in_bytes: int,
        shape: Iterable[int],
        data_type: DataType,
        popef_contains_tensor_data: bool = False,
    ) -> None:
        self.name = name
        self.size_in_bytes = size_in_bytes
        self.data_type = data_type
        self.popef_contains_tensor_data = popef_contains_tensor_data
        self._shape = tuple(shape)

    @property
    def shape(self) -> list[int]:
        """A fresh list. Ours: -1 is a size that only the run time knows."""
        return list(self._shape)

    def numpy_data_type(self) -> np.dtype[Any]:
        return self.data_type.numpy_dtype

    @classmethod
    def from_engine(cls, desc: engine.DataDesc) -> DataDesc:
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
