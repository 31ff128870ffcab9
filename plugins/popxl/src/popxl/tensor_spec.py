"""Specification of a tensor: shape, type and meta shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import popir
from popxl.dtypes import dtype


class TensorSpec(Mapping[str, Any]):
    """Shape, type and meta shape of a tensor."""

    def __init__(
        self, shape: Iterable[int], dtype: dtype, meta_shape: Iterable[int] | None = ()
    ) -> None:
        self._entries: dict[str, Any] = {
            "shape": tuple(shape),
            "dtype": dtype,
            "meta_shape": tuple(meta_shape or ()),
        }

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape on a replica."""
        shape: tuple[int, ...] = self._entries["shape"]
        return shape

    @property
    def dtype(self) -> dtype:
        """Type of elements."""
        found: dtype = self._entries["dtype"]
        return found

    @property
    def meta_shape(self) -> tuple[int, ...]:
        """Shape of the whole if it is a shard."""
        shape: tuple[int, ...] = self._entries["meta_shape"]
        return shape

    @property
    def _below(self) -> popir.Spec:
        return popir.Spec(self.dtype._below, self.shape, self.meta_shape)

    def to_dict(self) -> dict[str, Any]:
        """Return the three by name."""
        return dict(self._entries)

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the three in order."""
        return tuple(self._entries.values())

    def __getitem__(self, key: str) -> Any:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __hash__(self) -> int:
        return hash(self.to_tuple())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and self.to_tuple() == other.to_tuple()

    def __repr__(self) -> str:
        return (
            f"TensorSpec(shape={self.shape}, dtype={self.dtype}, "
            f"meta_shape={self.meta_shape})"
        )
