"""Remote buffers: tables of rows that programs load and store."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NoReturn

import popir
from popxl import current
from popxl.dtypes import dtype
from popxl.program import Program
from popxl.replica_grouping import ReplicaGrouping


class RemoteBuffer:
    """A table of rows in remote memory, for each replica."""

    def __init__(
        self, tensor_shape: Iterable[int], tensor_dtype: dtype, entries: int
    ) -> None:
        below = current.graph().ir
        # Refer to the layer below, so that a buffer keeps no handles of the program
        # alive.
        self._below = below
        type_ = dtype.as_dtype(tensor_dtype)._below
        self._buffer = popir.RemoteBuffer(below.new_remote_buffer(), type_, (), 1)
        #: Members that share a tensor, if the program gave their number.
        self._shard_over: int | None = None
        self.set_remote_buffer_info(tensor_dtype, tensor_shape, entries)

    @property
    def _current_ir(self) -> Program:
        return Program._of(self._below)

    def set_remote_buffer_info(
        self, tensor_dtype: dtype, tensor_shape: Iterable[int], entries: int
    ) -> None:
        """Change the shape, type and number of its rows."""
        self._dtype = dtype.as_dtype(tensor_dtype)
        self._buffer.dtype = self._dtype._below
        self._buffer.shape = tuple(map(int, tensor_shape))
        self.entries = entries

    @property
    def remote_buffer_id(self) -> int:
        """Counted from 1 in each Ir."""
        return self._buffer.number

    @remote_buffer_id.setter
    def remote_buffer_id(self, _: Any) -> NoReturn:
        raise AttributeError("can't set attribute 'remote_buffer_id'")

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return self._buffer.shape

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
        """Return the shape of the tensors whose shards are the rows."""
        return self._buffer.meta_shape

    @meta_shape.setter
    def meta_shape(self, meta_shape: Iterable[int]) -> None:
        self._buffer.meta_shape = tuple(map(int, meta_shape))

    @property
    def entries(self) -> int:
        """Return the number of rows."""
        return self._buffer.entries

    @entries.setter
    def entries(self, entries: int) -> None:
        if entries < 1:
            raise ValueError(
                f"Entries must be a non-zero, positive integer. Value: {entries}"
            )
        self._buffer.entries = entries

    def validate_tensor_matches_buffer(self, t: Any, num_shards: int = 1) -> None:
        """Raise ValueError if `t` does not fit a row."""
        shape = self.tensor_shape if num_shards == 1 else self.meta_shape
        if t.shape != shape or t.dtype is not self._dtype:
            raise ValueError(
                f"Tensor {t.id} does not match buffer. It is {t.dtype}{list(t.shape)}, "
                f"a row {self._dtype}{list(shape)}"
            )


def remote_buffer(
    tensor_shape: Iterable[int], tensor_dtype: dtype, entries: int = 1
) -> RemoteBuffer:
    """Return a table of `entries` rows."""
    return RemoteBuffer(tensor_shape, tensor_dtype, entries)


def replica_sharded_buffer(
    shape: Iterable[int],
    dtype: dtype,
    replica_grouping: ReplicaGrouping | None = None,
    shard_over: int | None = None,
    entries: int = 1,
) -> RemoteBuffer:
    """Return a table of `entries` rows, each a shard of a tensor of `shape`, which
    has a first axis of groups if there are several.
    """
    whole = tuple(map(int, shape))
    groups, count = _sharding(replica_grouping, shard_over)
    if groups.num_groups > 1:
        if not whole or whole[0] != groups.num_groups:
            raise ValueError(
                f"The first axis of {list(whole)} must have the length of the number "
                f"of groups ({groups.num_groups})"
            )
        whole = whole[1:]
    size = popir.shard_size(prod(whole), count)
    made = RemoteBuffer((size,), dtype, entries)
    made.meta_shape = whole
    made._shard_over = count
    return made


def _sharding(
    replica_grouping: ReplicaGrouping | None, shard_over: int | None
) -> tuple[ReplicaGrouping, int]:
    """Return the groups, and how many members share a tensor; ValueError if they do not
    divide.
    """
    groups = replica_grouping
    if groups is None:
        groups = Program._of(current.graph().ir).replica_grouping()  # type: ignore[attr-defined]
    size = groups.group_size
    count = size if shard_over is None else int(shard_over)
    if count > size or count < 1:
        raise ValueError(
            f"Shard over {count} must be from 1 to the size of the groups ({size})"
        )
    if size % count:
        raise ValueError(
            f"The size of the groups ({size}) must be a multiple of shard_over "
            f"({count})"
        )
    return groups, count
