"""Remote buffers: descriptions only, so far; loading and storing rows is not there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import popir
from popxl import current
from popxl.dtypes import dtype
from popxl.program import Program
from popxl.tensor import Tensor


class RemoteBuffer:
    """A table of rows in remote memory."""

    def __init__(
        self, tensor_shape: Iterable[int], tensor_dtype: dtype, entries: int
    ) -> None:
        below = current.graph().ir
        # What is below: a buffer keeps no handles of the program alive.
        self._below = below
        self._id = below.new_remote_buffer()
        self._meta_shape: tuple[int, ...] = ()
        self.set_remote_buffer_info(tensor_dtype, tensor_shape, entries)

    @property
    def _current_ir(self) -> Program:
        return Program._of(self._below)

    def set_remote_buffer_info(
        self, tensor_dtype: dtype, tensor_shape: Iterable[int], entries: int
    ) -> None:
        """Describe it anew."""
        self._dtype = dtype.as_dtype(tensor_dtype)
        self._shape = tuple(tensor_shape)
        self.entries = entries

    @property
    def remote_buffer_id(self) -> int:
        """Counted from 1 in each Ir."""
        return self._id

    @remote_buffer_id.setter
    def remote_buffer_id(self, _: Any) -> NoReturn:
        raise AttributeError("can't set attribute 'remote_buffer_id'")

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return self._shape

    @tensor_shape.setter
    def tensor_shape(self, _: Any) -> NoReturn:
        raise AttributeError("can't set attribute 'tensor_shape'")

    @property
    def tensor_dtype(self) -> dtype:
        """Type of a row's elements."""
        return self._dtype

    @tensor_dtype.setter
    def tensor_dtype(self, _: Any) -> NoReturn:
        raise AttributeError("can't set attribute 'tensor_dtype'")

    @property
    def meta_shape(self) -> tuple[int, ...]:
        """The shape of what the rows are shards of."""
        return self._meta_shape

    @meta_shape.setter
    def meta_shape(self, meta_shape: Iterable[int]) -> None:
        self._meta_shape = tuple(meta_shape)

    @property
    def entries(self) -> int:
        """How many rows it has."""
        return self._entries

    @entries.setter
    def entries(self, entries: int) -> None:
        if entries < 1:
            raise ValueError(
                f"Entries must be a non-zero, positive integer. Value: {entries}"
            )
        self._entries = entries

    def validate_tensor_matches_buffer(self, t: Tensor, num_shards: int = 1) -> None:
        """ValueError where `t` is no row of it."""
        shape = self._shape if num_shards == 1 else self._meta_shape
        if t.shape != shape or t.dtype is not self._dtype:
            raise ValueError(
                f"Tensor {t.id} does not match buffer. It is {t.dtype}{list(t.shape)}, "
                f"a row {self._dtype}{list(shape)}"
            )


def remote_buffer(
    tensor_shape: Iterable[int], tensor_dtype: dtype, entries: int = 1
) -> RemoteBuffer:
    """A table of `entries` rows."""
    return RemoteBuffer(tensor_shape, tensor_dtype, entries)


def replica_sharded_buffer(*args: Any, **kwargs: Any) -> NoReturn:
    """Not there yet."""
    raise popir.NotYet("replica_sharded_buffer is not there yet: no sharding is")
