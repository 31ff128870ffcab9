"""Several tensors in one anonymous segment, on their way to another process.

The segment has the bytes of each tensor, 64-byte aligned, then a msgpack table of them:
(name, data type, shape, offset, bytes). The control message only states where the table
is, so any number of tensors fits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgpack

from engine.errors import EngineBug
from engine.tensor import Tensor
from engine.transport.shared_memory import SharedMemory
from popef_io import DataType, map_descriptor

#: Each tensor begins at a multiple of this, so that it can be used in place.
_ALIGNMENT = 64


def pack_tensors(
    name: str, tensors: Mapping[str, Tensor]
) -> tuple[tuple[int, int], SharedMemory]:
    """Return the place of the table, for the message, and the segment. The caller owns
    the segment.
    """
    table: list[tuple[str, str, list[int], int, int]] = []
    offset = 0
    for key, tensor in tensors.items():
        shape = list(tensor.shape)
        table.append((key, tensor.data_type.name, shape, offset, tensor.nbytes))
        offset += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    raw = msgpack.packb(table)
    memory = SharedMemory.create(name, offset + len(raw))
    for (*_, start, nbytes), tensor in zip(table, tensors.values(), strict=True):
        memory.view[start : start + nbytes] = tensor.buffer
    memory.view[offset : offset + len(raw)] = raw
    return (offset, len(raw)), memory


def unpack_tensors(place: Any, fd: int) -> dict[str, Tensor]:
    """Return the tensors in a segment, as views that keep it mapped. Keep `fd` open."""
    offset, length = map(int, place)
    memory = map_descriptor(fd, os.fstat(fd).st_size)
    if not 0 <= offset <= offset + length <= len(memory):
        raise EngineBug(f"no table of tensors at {offset} of {len(memory)} bytes")
    tensors = {}
    for name, data_type, shape, start, nbytes in msgpack.unpackb(
        memory[offset : offset + length]
    ):
        part = memory[start : start + nbytes]
        tensors[name] = Tensor(DataType[data_type], tuple(shape), (part,), nbytes)
    return tensors
