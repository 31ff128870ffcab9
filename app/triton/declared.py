"""The tensors that Triton's configuration declares, compared with the model's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.spec import ModelSpec, TensorSpec
from app.triton.reading import TritonConfigError
from app.triton.reshape import Reshape, Reshapes


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """One input or output as declared; `shape` has the batch dimension in it.

    `datatype` is the protocol's name; empty where none is declared. `format` and
    `label_filename` are told to those who ask for the configuration.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    label: str
    reshape: Reshape | None = None
    format: str = ""
    label_filename: str = ""

    def check(self, tensor: TensorSpec | None, kind: str) -> str:
        """How the model differs from what is declared; empty if it does not."""
        if tensor is None:
            return f"{self.label}: the model has no {kind} '{self.name}'"
        if self.datatype and tensor.datatype != self.datatype:
            return (
                f"{self.label}: {kind} '{self.name}' is declared as {self.datatype}, "
                f"but the model has {tensor.datatype}"
            )
        if not self.shape or tensor.shape is None or _fits(self.shape, tensor.shape):
            return ""
        return (
            f"{self.label}: {kind} '{self.name}' is declared with shape "
            f"{list(self.shape)}, but the model has {list(tensor.shape)}"
        )


def declared_tensors(
    messages: Iterable[Any], max_batch_size: int, label: str
) -> tuple[DeclaredTensor, ...]:
    """The ``input`` or ``output`` entries. Raises `TritonConfigError`."""
    return tuple(_declared(message, max_batch_size, label) for message in messages)


def _declared(message: Any, max_batch_size: int, label: str) -> DeclaredTensor:
    name, dims = message.name, tuple(message.dims)
    if not name:
        raise TritonConfigError(f"{label}: an input or output has no name")
    if any(dim < -1 or dim == 0 for dim in dims):
        msg = f"{label}: dims of '{name}' must be 1 or more, or -1, got {list(dims)}"
        raise TritonConfigError(msg)
    reshape = None
    if message.HasField("reshape"):
        inner = tuple(message.reshape.shape)
        reshape = Reshape(name, dims, inner, max_batch_size > 0)
        if reshape.check():
            msg = f"{label}: reshape of '{name}' cannot be done: {reshape.check()}"
            raise TritonConfigError(msg)
    kind = _word(message, "data_type").removeprefix("TYPE_")
    datatype = {"INVALID": "", "STRING": "BYTES"}.get(kind, kind)
    shape = dims
    if dims and max_batch_size > 0:
        shape = (-1, *dims)
    return DeclaredTensor(
        name,
        datatype,
        shape,
        label,
        reshape,
        format=_word(message, "format"),
        label_filename=getattr(message, "label_filename", ""),
    )


def _word(message: Any, field: str) -> str:
    """The word of an enumerator; empty where messages of this kind have none."""
    found = message.DESCRIPTOR.fields_by_name.get(field)
    if found is None:
        return ""
    word: str = found.enum_type.values_by_number[getattr(message, field)].name
    return word


@dataclass(frozen=True, slots=True)
class DeclaredTensors:
    """All that a configuration declares; nothing, if there is none."""

    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()

    @property
    def reshapes(self) -> Reshapes:
        """What is to be put into the model when it is compiled."""
        return Reshapes(
            tuple(t.reshape for t in self.inputs if t.reshape is not None),
            tuple(t.reshape for t in self.outputs if t.reshape is not None),
        )

    def check(self, spec: ModelSpec) -> None:
        """Compares it with the model. Raises ValueError, naming both."""
        ins, outs = spec.inputs_by_name, spec.outputs_by_name
        found = [t.check(ins.get(t.name), "input") for t in self.inputs]
        found += [t.check(outs.get(t.name), "output") for t in self.outputs]
        problems = [problem for problem in found if problem]
        if problems:
            raise ValueError("; ".join(problems))


def _fits(declared: tuple[int, ...], model: tuple[int, ...]) -> bool:
    """Whether some tensor has both shapes; -1 is any dimension."""
    return len(declared) == len(model) and all(
        a == b or a < 0 or b < 0 for a, b in zip(declared, model, strict=True)
    )
