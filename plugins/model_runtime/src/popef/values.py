# ruff: noqa: N802 - the names are the original's
"""Values of metadata, with the accessors of the PopEF User Guide (5.1).

A getter has the name of its field, a setter the name with `set` before it. The getter
of a list or an object returns the object itself, which can be changed in place. A
setter takes a copy, as in C++; a wrong type raises a TypeError. If the guide names no
default, it is zero, false or empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import popef_io
from popef.taking import Text, expected, numbers, taken, text, truth
from popef_io import DataType, TensorType


class Option:
    """A pair of strings: an option of engine or device."""

    __slots__ = ("_name", "_value")

    def __init__(self, name: Text = "", value: Text = "") -> None:
        self._name = text(name)
        self._value = text(value)

    def name(self) -> str:
        """Return the name."""
        return self._name

    def setName(self, name: Text) -> None:
        """Set the name: a string, or bytes in UTF-8."""
        self._name = text(name)

    def value(self) -> str:
        """Return the value."""
        return self._value

    def setValue(self, value: Text) -> None:
        """Set the value, which is always a string."""
        self._value = text(value)

    @classmethod
    def from_io(cls, option: popef_io.Option) -> Option:
        """Return the object for a value of `popef_io`."""
        return cls(option.name, option.value)

    def to_io(self) -> popef_io.Option:
        """Return the value of `popef_io` (an addition of PopGate)."""
        return popef_io.Option(self._name, self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Option) and self.to_io() == other.to_io()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Option {self._name}={self._value!r}>"


class TensorInfo:
    """Shape and element type; the shape `[]` is a scalar."""

    __slots__ = ("_data_type", "_has_rank", "_shape")

    ShapeDimType = int

    def __init__(self) -> None:
        self._shape: list[int] = []
        self._data_type = DataType.BOOL
        self._has_rank = True

    def shape(self) -> list[int]:
        """Return the dimensions.

        An addition of PopGate: a dimension of -1 is known only at run time. An empty
        shape whose `sizeInBytes` is -1 is entirely unknown.
        """
        return self._shape

    def setShape(self, shape: Iterable[int]) -> None:
        """Take dimensions; an empty list is a scalar."""
        self._shape = numbers(shape)
        self._has_rank = True

    def dataType(self) -> DataType:
        """Return the type of one element; BOOL until it is set."""
        return self._data_type

    def setDataType(self, data_type: DataType) -> None:
        """Take the type of one element."""
        self._data_type = expected(data_type, DataType)

    def numpyDType(self) -> np.dtype[Any]:
        """Return the numpy type that carries one element."""
        return self._data_type.numpy_dtype

    def sizeInBytes(self) -> int:
        """Return the bytes of the tensor; -1 if known only at run time."""
        info = self.to_io()
        if not info.is_static or info.data_type is DataType.STRING:
            return -1
        return info.size_in_bytes

    @classmethod
    def from_io(cls, info: popef_io.TensorInfo) -> TensorInfo:
        """Return the object for a value of `popef_io`."""
        made = cls()
        made._shape = list(info.shape or ())
        made._has_rank = info.shape is not None
        made._data_type = info.data_type
        return made

    def to_io(self) -> popef_io.TensorInfo:
        """Return the value of `popef_io` (an addition of PopGate)."""
        shape = tuple(self._shape) if self._has_rank or self._shape else None
        return popef_io.TensorInfo(shape, self._data_type)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorInfo) and self.to_io() == other.to_io()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<TensorInfo {self.to_io()}>"


class ProgramFlow:
    """Programs that load, compute and save, in their order."""

    __slots__ = ("_load", "_main", "_save")

    ProgramIndexType = int

    def __init__(self) -> None:
        self._load: list[int] = []
        self._main: list[int] = []
        self._save: list[int] = []

    def load(self) -> list[int]:
        """Return the numbers of the programs that load weights to the device."""
        return self._load

    def setLoad(self, programs: Iterable[int]) -> None:
        """Take the numbers of the load programs, in the order in which they run."""
        self._load = numbers(programs)

    def main(self) -> list[int]:
        """Return the numbers of the programs that compute."""
        return self._main

    def setMain(self, programs: Iterable[int]) -> None:
        """Take the numbers of the main programs, in the order in which they run."""
        self._main = numbers(programs)

    def save(self) -> list[int]:
        """Return the numbers of the programs that copy the device's state to
        the host.
        """
        return self._save

    def setSave(self, programs: Iterable[int]) -> None:
        """Take the numbers of the save programs, in the order in which they run."""
        self._save = numbers(programs)

    @classmethod
    def from_io(cls, flow: popef_io.ProgramFlow) -> ProgramFlow:
        """Return the object for a value of `popef_io`."""
        made = cls()
        made._load, made._main = list(flow.load), list(flow.main)
        made._save = list(flow.save)
        return made

    def to_io(self) -> popef_io.ProgramFlow:
        """Return the value of `popef_io` (an addition of PopGate)."""
        return popef_io.ProgramFlow(
            tuple(self._load), tuple(self._main), tuple(self._save)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramFlow) and self.to_io() == other.to_io()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<ProgramFlow load={self._load} main={self._main} save={self._save}>"


class Anchor:
    """One stream between host and device, and the tensor behind it."""

    __slots__ = (
        "_handle",
        "_is_per_replica",
        "_name",
        "_programs",
        "_tensor_info",
        "_type",
    )

    ProgramsType = ProgramFlow.ProgramIndexType

    def __init__(self) -> None:
        self._name = ""
        self._handle = ""
        self._tensor_info = TensorInfo()
        self._type = TensorType.UNKNOWN
        self._programs: list[int] = []
        self._is_per_replica = False

    def name(self) -> str:
        """Name of the tensor, by which requests and data know it."""
        return self._name

    def setName(self, name: Text) -> None:
        """Take the name of the tensor."""
        self._name = text(name)

    def handle(self) -> str:
        """Return the key of the stream, unique in a model."""
        return self._handle

    def setHandle(self, handle: Text) -> None:
        """Take the key of the stream."""
        self._handle = text(handle)

    def tensorInfo(self) -> TensorInfo:
        """Return the shape and type of one transfer."""
        return self._tensor_info

    def setTensorInfo(self, info: TensorInfo) -> None:
        """Take a copy of the shape and type of one transfer."""
        self._tensor_info = taken(info, TensorInfo)

    def type(self) -> TensorType:
        """Return the direction of the data; UNKNOWN until it is set."""
        return self._type

    def setType(self, tensor_type: TensorType) -> None:
        """Set the direction of the data: INPUT is to the device."""
        self._type = expected(tensor_type, TensorType)

    def programs(self) -> list[int]:
        """Return the programs that use the stream; empty: not assigned to any."""
        return self._programs

    def setPrograms(self, programs: Iterable[int]) -> None:
        """Take the numbers of the programs that use the stream."""
        self._programs = numbers(programs)

    def isPerReplica(self) -> bool:
        """Return whether each replica has data of its own."""
        return self._is_per_replica

    def setIsPerReplica(self, is_per_replica: bool) -> None:
        """Say whether each replica has data of its own."""
        self._is_per_replica = truth(is_per_replica)

    @classmethod
    def from_io(cls, anchor: popef_io.Anchor) -> Anchor:
        """Return the object for a value of `popef_io`."""
        made = cls()
        made._name, made._handle = anchor.name, anchor.handle
        made._tensor_info = TensorInfo.from_io(anchor.tensor_info)
        made._type = anchor.type
        made._programs = list(anchor.programs)
        made._is_per_replica = anchor.is_per_replica
        return made

    def to_io(self) -> popef_io.Anchor:
        """Return the value of `popef_io` (an addition of PopGate)."""
        return popef_io.Anchor(
            self._name,
            self._handle,
            self._tensor_info.to_io(),
            self._type,
            tuple(self._programs),
            self._is_per_replica,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Anchor) and self.to_io() == other.to_io()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        info = self._tensor_info.to_io()
        return f"<Anchor {self._type.name} {self._name!r} {info}>"
