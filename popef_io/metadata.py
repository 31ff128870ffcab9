"""The values in a container: descriptions of a model's anchors, programs and data.

Names and meaning follow the PopEF User Guide, chapters 2 and 5.1, in Python's spelling.
All values are frozen and compare by value. Nothing is checked on construction. The
rules are in `popef_io.descriptor` and apply both on writing and on reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from popef_io.datatypes import DataType, TensorType
from popef_io.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Option:
    """A key and its value, like Poplar's engine and device options."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape and element type of a tensor.

    `()` is a scalar. PopGate adds two values to PopEF's. A dimension of -1 is known
    only at run time. A shape of None means that not even the rank is known.
    """

    shape: tuple[int, ...] | None
    data_type: DataType

    @property
    def is_static(self) -> bool:
        """Return whether every dimension is known."""
        return self.shape is not None and -1 not in self.shape

    @property
    def element_count(self) -> int:
        """Return the product of the dimensions. Raises InvalidValueError if the shape
        is not static.
        """
        if self.shape is None or -1 in self.shape:
            raise InvalidValueError(
                f"{self} has a dimension that is known only at run time", field="shape"
            )
        return prod(self.shape)

    @property
    def size_in_bytes(self) -> int:
        """Return the bytes of the tensor. Raises InvalidValueError if its shape is not
        static, or for STRING.
        """
        if self.data_type is DataType.STRING:
            raise InvalidValueError(f"the size of {self} depends on its strings")
        return self.element_count * self.data_type.item_size

    def __str__(self) -> str:
        """Return a string such as `F32[1, ?, 64]`, or `F32[...]` if the rank is
        unknown.
        """
        if self.shape is None:
            return f"{self.data_type.name}[...]"
        dimensions = ("?" if size == -1 else str(size) for size in self.shape)
        return f"{self.data_type.name}[{', '.join(dimensions)}]"


@dataclass(frozen=True, slots=True)
class Anchor:
    """One stream between host and device, and the tensor that it carries."""

    name: str
    """The tensor's name: users see it, and tensor and feed data refer to it."""
    handle: str
    """The stream's key, unique in the model; empty only for UNKNOWN anchors."""
    tensor_info: TensorInfo
    type: TensorType
    programs: tuple[int, ...] = ()
    """Programs during which the stream is used; empty: not assigned to any."""
    is_per_replica: bool = False
    """Whether each replica has its own data."""


@dataclass(frozen=True, slots=True)
class ProgramFlow:
    """Program numbers to run, in order (Model Runtime User Guide 3.3)."""

    load: tuple[int, ...] = ()
    """The programs that run once, before the first main call. They load weights and
    constants.
    """
    main: tuple[int, ...] = ()
    """The programs that compute."""
    save: tuple[int, ...] = ()
    """The programs that run at the end. They bring tensors back to the host."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata for running one executable (PopEF User Guide 2.3)."""

    executable: str
    """Name of the executable blob this describes."""
    anchors: tuple[Anchor, ...] = ()
    program_flow: ProgramFlow = ProgramFlow()
    programs_map: Mapping[int, str] = field(default_factory=dict)
    """Name of each program, for a person."""
    replication_factor: int = 1
    """Replicas inside the compiled graph."""
    num_ipus: int = 1
    """Units of a device that the programs need."""
    ipu_version: int = 0
    """Target architecture; 0: none in particular."""
    is_pod: bool = False
    num_processes: int = 1
    """Host processes needed."""
    is_inference: bool = True
    engine_options: tuple[Option, ...] = ()
    device_options: tuple[Option, ...] = ()
    seed_handle: str = ""
    """Stream handle of the random seed input; empty: none."""
    device_iterations: int = 1
    """Model iterations that one run of the main programs performs."""

    def option(self, name: str, default: str | None = None) -> str | None:
        """Return the value of the engine option `name`, or `default`."""
        for option in self.engine_options:
            if option.name == name:
                return option.value
        return default


@dataclass(frozen=True, slots=True)
class ExecutableInfo:
    """Descriptor of an executable blob."""

    name: str


@dataclass(frozen=True, slots=True)
class TensorDataInfo:
    """Descriptor of a tensor data blob: the tensor of the anchors called `name`."""

    num_tensors: ClassVar[int] = 1
    name: str
    tensor_info: TensorInfo
    executable: str = ""
    """The executable that the data belongs to. Empty means any executable with such an
    anchor, which is PopGate's addition.
    """


@dataclass(frozen=True, slots=True)
class FeedDataInfo:
    """Descriptor of a feed data blob: `num_tensors` equal tensors for one anchor."""

    name: str
    tensor_info: TensorInfo
    """The shape and type of one tensor."""
    num_tensors: int
    executable: str = ""
    """The executable that the data belongs to, as for tensor data."""


@dataclass(frozen=True, slots=True)
class OpaqueInfo:
    """Descriptor of an opaque blob."""

    name: str
    executable: str = ""
    """The executable that the blob belongs to; empty for all."""
