"""Streams between host and device."""

from __future__ import annotations

from collections.abc import Iterable

import popir
from popxl import current
from popxl.dtypes import dtype
from popxl.tensor import Tensor, TensorSpec


class Stream:
    """Common part of both directions."""

    _tensor: Tensor
    _stream: popir.Stream
    _hash: int

    def __init__(self) -> None:
        raise NotImplementedError("Use popxl.h2d_stream or popxl.d2h_stream")

    @classmethod
    def _make(
        cls, shape: Iterable[int], type_: dtype, name: str, is_in: bool
    ) -> Stream:
        ir = current.graph().ir
        spec = popir.Spec(dtype.as_dtype(type_)._below, tuple(map(int, shape)))
        below = ir.add_stream(spec, name, is_in, current.settings().scopes)
        return cls._of(Tensor._of(below.tensor), below)

    @classmethod
    def _of(cls, tensor: Tensor, below: popir.Stream) -> Stream:
        self = cls.__new__(cls)
        self._tensor = tensor
        self._stream = below
        self._hash = hash(tensor)
        return self

    @property
    def tensor_id(self) -> str:
        """The id of the stream's tensor, which is in the main graph."""
        return self._tensor.id

    @property
    def spec(self) -> TensorSpec:
        """Shape and type of one transfer."""
        return self._tensor.spec

    @property
    def dtype(self) -> dtype:
        """Type of its elements."""
        return self._tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one transfer."""
        return self._tensor.shape

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self._tensor == other._tensor

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.tensor_id} {self.dtype} {self.shape}"


class HostToDeviceStream(Stream):
    """Stream from the host to the device."""


class DeviceToHostStream(Stream):
    """Stream from the device to the host."""


def h2d_stream(
    shape: Iterable[int], dtype: dtype, name: str | None = None
) -> HostToDeviceStream:
    """Return a stream from the host to the device."""
    made = HostToDeviceStream._make(shape, dtype, name or "h2d_stream", True)
    assert isinstance(made, HostToDeviceStream)
    return made


def d2h_stream(
    shape: Iterable[int], dtype: dtype, name: str | None = None
) -> DeviceToHostStream:
    """Return a stream from the device to the host."""
    made = DeviceToHostStream._make(shape, dtype, name or "d2h_stream", False)
    assert isinstance(made, DeviceToHostStream)
    return made
