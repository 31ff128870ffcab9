"""Specification of a model's inputs and outputs, in the words of the Open Inference
Protocol.

The table of datatypes here is the only place that knows both the protocol's names
(``FP32``) and PopEF's data types (``F32``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import numpy as np

from engine import DataDesc, Tensor
from popef_io import DataType


@dataclass(frozen=True, slots=True)
class Datatype:
    """One datatype of the protocol.

    `struct_code` is the code of Python's `struct` that packs one element from a number.
    It is None if packing needs more (BF16) or the elements are no numbers (BOOL,
    BYTES).
    """

    name: str
    data_type: DataType
    kind: str
    """``f`` float, ``i`` signed, ``u`` unsigned, ``b`` bool, ``s`` string."""
    struct_code: str | None

    @property
    def item_size(self) -> int:
        """Return bytes of one element; 0 for BYTES, whose elements vary."""
        return self.data_type.item_size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the numpy type that carries the bytes (uint16 for BF16)."""
        return self.data_type.numpy_dtype


DATATYPES: Mapping[str, Datatype] = MappingProxyType(
    {
        name: Datatype(name, data_type, kind, code)
        for name, data_type, kind, code in (
            ("BOOL", DataType.BOOL, "b", None),
            ("UINT8", DataType.U8, "u", "B"),
            ("UINT16", DataType.U16, "u", "H"),
            ("UINT32", DataType.U32, "u", "I"),
            ("UINT64", DataType.U64, "u", "Q"),
            ("INT8", DataType.S8, "i", "b"),
            ("INT16", DataType.S16, "i", "h"),
            ("INT32", DataType.S32, "i", "i"),
            ("INT64", DataType.S64, "i", "q"),
            ("FP16", DataType.F16, "f", "e"),
            ("BF16", DataType.BF16, "f", None),
            ("FP32", DataType.F32, "f", "f"),
            ("FP64", DataType.F64, "f", "d"),
            ("BYTES", DataType.STRING, "s", None),
        )
    }
)
#: Types of the messages about a tensor and a model.
_TENSOR_MESSAGE: Any = tuple[str, str, tuple[int, ...] | None, tuple[str, ...], int]
_DEFAULT_MESSAGE: Any = tuple[str, str, tuple[int, ...], bytes]
_ROWS_MESSAGE: Any = tuple[int, int, bool]
_SPEC_MESSAGE: Any = tuple[
    str,
    str,
    list[Any],
    list[Any],
    _ROWS_MESSAGE,
    list[_DEFAULT_MESSAGE],
    dict[str, str],
]
_BY_DATA_TYPE = {item.data_type: item for item in DATATYPES.values()}


def datatype_of(data_type: DataType) -> Datatype:
    """Return the protocol's datatype of a PopEF data type.

    Raises ValueError for the types that the protocol has no name for (FP8).
    """
    found = _BY_DATA_TYPE.get(data_type)
    if found is None:
        msg = (
            f"data type {data_type.name} has no name in the Open Inference Protocol, "
            f"whose types are {', '.join(DATATYPES)}"
        )
        raise ValueError(msg)
    return found


def notation(datatype: str, shape: Iterable[int] | None) -> str:
    """Return a type as people read it: ``FP32[-1,4]``."""
    return f"{datatype}[{'...' if shape is None else ','.join(map(str, shape))}]"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model: metadata shows it, and requests must match it.

    `shape` is None if the rank is free, and -1 stands for a free dimension. `labels`
    are the names of an output's classes.
    """

    name: str
    datatype: str
    data_type: DataType
    shape: tuple[int, ...] | None
    labels: tuple[str, ...] = field(default=(), repr=False)
    multiple: int = 1

    @classmethod
    def make(
        cls, name: str, datatype: str, shape: Iterable[int] | None = None
    ) -> TensorSpec:
        """Return the spec of a datatype by its protocol name, for example ``FP32``."""
        dims = None if shape is None else tuple(shape)
        return cls(name, datatype, DATATYPES[datatype].data_type, dims)

    @classmethod
    def from_desc(cls, desc: DataDesc) -> TensorSpec:
        found = datatype_of(desc.data_type)
        return cls(
            desc.name, found.name, desc.data_type, desc.shape, multiple=desc.multiple
        )

    @property
    def type(self) -> Datatype:
        return DATATYPES[self.datatype]

    def to_message(self) -> list[object]:
        return [self.name, self.datatype, self.shape, self.labels, self.multiple]

    @classmethod
    def from_message(cls, message: Sequence[Any]) -> TensorSpec:
        name, datatype, shape, labels, multiple = msgspec.convert(
            message, _TENSOR_MESSAGE
        )
        plain = cls.make(name, datatype, shape)
        return replace(plain, labels=labels, multiple=multiple)


class DescribesTensors(Protocol):
    """The part of `engine.ModelRunner` from which a spec is made."""

    @property
    def request_inputs(self) -> tuple[DataDesc, ...]: ...
    @property
    def request_outputs(self) -> tuple[DataDesc, ...]: ...
    @property
    def max_batch_size(self) -> int: ...
    @property
    def batching_dim(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec:
    """A version of a model as requests see it. Compared by identity.

    `max_batch_size` is 0 if rows of different requests are not mixed. Otherwise the
    first dimension of every input and output is the batch, and all inputs of a request
    must agree on it. The engine splits a request with more rows. `max_rows`, if not 0,
    refuses a request with more rows. With `optional_inputs` a request may omit inputs.
    Inputs with `defaults` may be omitted in any model, and then have the default in
    each row. `aliases` are other names of inputs that requests may use, and both names
    remain valid. `encoded` describes numeric inputs that also accept files, for example
    pictures: a request may fill the BYTES input of the same name instead.
    `shown_classes` are outputs of which a request that is a file receives only so many
    of the highest values.
    """

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    max_rows: int = 0
    optional_inputs: bool = False
    defaults: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    aliases: Mapping[str, str] = field(default_factory=dict, repr=False)
    encoded: Mapping[str, TensorSpec] = field(default_factory=dict, repr=False)
    shown_classes: Mapping[str, int] = field(default_factory=dict, repr=False)
    inputs_by_name: Mapping[str, TensorSpec] = field(init=False, repr=False)
    outputs_by_name: Mapping[str, TensorSpec] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for attribute, tensors in (
            ("inputs_by_name", self.inputs),
            ("outputs_by_name", self.outputs),
        ):
            by_name = {tensor.name: tensor for tensor in tensors}
            if len(by_name) != len(tensors):
                msg = f"model '{self.name}' has two tensors of the same name"
                raise ValueError(msg)
            object.__setattr__(self, attribute, by_name)

    @property
    def is_batched(self) -> bool:
        return self.max_batch_size > 0

    def default(self, name: str, rows: int) -> Tensor:
        """Return the value of an omitted input for a request of this many rows."""
        one = self.defaults[name]
        if not self.is_batched or rows == 1:
            return one
        shape = (rows, *one.shape[1:])
        return Tensor(one.data_type, shape, tuple(one.parts) * rows, one.nbytes * rows)

    def without(self, inputs: Container[str], outputs: Container[str]) -> ModelSpec:
        """Return this spec without some inputs and outputs."""
        return replace(
            self,
            inputs=tuple(t for t in self.inputs if t.name not in inputs),
            outputs=tuple(t for t in self.outputs if t.name not in outputs),
        )

    @classmethod
    def from_runner(
        cls,
        name: str,
        version: str,
        runner: DescribesTensors,
        *,
        max_rows: int = 0,
        optional_inputs: bool = False,
        labels: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> ModelSpec:
        """Return the spec of the model in `runner`; `labels` are those of its outputs.

        Raises ValueError for a data type that the protocol does not have, and for
        labels of a missing output.
        """
        outputs = [TensorSpec.from_desc(desc) for desc in runner.request_outputs]
        unknown = set(labels).difference(output.name for output in outputs)
        if unknown:
            msg = (
                f"labels name {sorted(unknown)}, which are not outputs of the model; "
                f"it has {[output.name for output in outputs]}"
            )
            raise ValueError(msg)
        return cls(
            name,
            version,
            tuple(TensorSpec.from_desc(desc) for desc in runner.request_inputs),
            tuple(replace(o, labels=labels.get(o.name, ())) for o in outputs),
            # If rows are not the first dimension, only the engine handles them.
            0 if runner.batching_dim else runner.max_batch_size,
            max_rows,
            optional_inputs,
        )

    def to_message(self) -> list[object]:
        """Return the spec for an HTTP worker, which decodes no pictures."""
        return [
            self.name,
            self.version,
            [tensor.to_message() for tensor in self.inputs],
            [tensor.to_message() for tensor in self.outputs],
            [self.max_batch_size, self.max_rows, self.optional_inputs],
            [
                [name, t.data_type.name, t.shape, t.tobytes()]
                for name, t in self.defaults.items()
            ],
            dict(self.aliases),
        ]

    @classmethod
    def from_message(cls, message: Sequence[Any]) -> ModelSpec:
        name, version, inputs, outputs, rows, defaults, aliases = msgspec.convert(
            message, _SPEC_MESSAGE
        )
        max_batch_size, max_rows, optional_inputs = rows
        return cls(
            name,
            version,
            tuple(map(TensorSpec.from_message, inputs)),
            tuple(map(TensorSpec.from_message, outputs)),
            max_batch_size,
            max_rows,
            optional_inputs,
            {
                key: Tensor(DataType[data_type], shape, (raw,), len(raw))
                for key, data_type, shape, raw in defaults
            },
            aliases,
        )
