"""Loads and stores of remote memory."""

from __future__ import annotations

from popart.enums import ExecutionContext
from popxl.current import state
from popxl.dtypes import uint32
from popxl.ops.shapes import init
from popxl.ops.utils import check_inputs, emit, emit_op
from popxl.remote_buffer import RemoteBuffer
from popxl.tensor import Tensor, constant


def remote_load(
    remote_buffer: RemoteBuffer, offset: int | Tensor, name: str | None = None
) -> Tensor:
    """Return the row of the buffer at `offset`."""
    at = _offset(offset)
    base = name or _name(remote_buffer, at)
    start = init(
        remote_buffer.tensor_shape,
        remote_buffer.tensor_dtype,
        f"{base}_remote_load",
        init_type="undef",
    )
    return _load("RemoteLoad", remote_buffer, at, start, base)


def remote_load_(
    remote_buffer: RemoteBuffer, offset: int | Tensor, t: Tensor
) -> Tensor:
    """Return the row of the buffer at `offset`, into `t`."""
    at = _offset(offset)
    check_inputs(t=t)
    remote_buffer.validate_tensor_matches_buffer(t)
    base = _name(remote_buffer, at)
    return _load("RemoteLoadInplace", remote_buffer, at, t, base)


def remote_store(remote_buffer: RemoteBuffer, offset: int | Tensor, t: Tensor) -> None:
    """Make `t` the row of the buffer at `offset`."""
    at = _offset(offset)
    check_inputs(t=t)
    remote_buffer.validate_tensor_matches_buffer(t)
    attributes = {"buffer": remote_buffer._buffer}
    emit_op("RemoteStore", {"t": t, "offset": at}, [], attributes)


def load_shard(remote_buffer: RemoteBuffer, name: str) -> Tensor:
    """Use row 0 of the buffer. The row is loaded after weights come from the host, and
    stored before they go back.
    """
    state.fragments.append(ExecutionContext.WeightsFromHostFragment.name)
    try:
        shard = remote_load(remote_buffer, 0, name)
    finally:
        state.fragments.pop()
    state.fragments.append(ExecutionContext.WeightsToHostFragment.name)
    try:
        remote_store(remote_buffer, 0, shard)
    finally:
        state.fragments.pop()
    return shard


def _load(
    type_: str, buffer: RemoteBuffer, at: Tensor, target: Tensor, base: str
) -> Tensor:
    given = {"buffer": buffer._buffer, "meta_shape": buffer.meta_shape}
    name = f"{base}_remote_loaded"
    return emit(type_, {"t": target, "offset": at}, [name], given)[0]


def _offset(offset: int | Tensor) -> Tensor:
    if isinstance(offset, Tensor):
        check_inputs(offset=offset)
        if offset.nelms != 1:
            raise ValueError(f"The offset must be a scalar, found {offset}")
        return offset
    if offset < 0:
        raise ValueError(f"The offset must not be negative, found {offset}")
    return constant(offset, uint32, name="offset")


def _name(buffer: RemoteBuffer, at: Tensor) -> str:
    return f"id_{buffer.remote_buffer_id}_offset_{at.name}"
