"""The tensors that a configuration declares, compared with the model's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.config.reshape import Reshape, Reshapes
from app.spec import ModelSpec, TensorSpec
from engine import PYTHON_MORE, PYTHON_STEP


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """One input or output as declared. `dims` are without the batch dimension.

    `datatype` is the protocol's name; empty if none is declared. `reshape` are the
    model's dimensions if they differ from `dims`, else None. `format` and
    `label_filename` are only returned in the configuration.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    label: str
    reshape: tuple[int, ...] | None = None
    format: str = ""
    label_filename: str = ""

    def shape(self, *, batched: bool) -> tuple[int, ...] | None:
        """Return the shape that requests see; None if no dimensions are declared."""
        if not self.dims and self.reshape is None:
            return None
        return (-1, *self.dims) if batched else self.dims

    def narrowed(self, tensor: TensorSpec, kind: str, *, batched: bool) -> TensorSpec:
        """Return the tensor of the model, narrowed by its declaration.

        Raises ValueError if they differ.
        """
        if self.datatype and tensor.datatype != self.datatype:
            msg = (
                f"{self.label}: {kind} '{self.name}' is declared as {self.datatype}, "
                f"but the model has {tensor.datatype}"
            )
            raise ValueError(msg)
        shape = self.shape(batched=batched)
        if shape is None:
            return tensor
        if tensor.shape is None:
            return replace(tensor, shape=shape)
        if not _fits(shape, tensor.shape):
            msg = (
                f"{self.label}: {kind} '{self.name}' is declared with shape "
                f"{list(shape)}, but the model has {list(tensor.shape)}"
            )
            raise ValueError(msg)
        known = tuple(map(max, shape, tensor.shape))
        return tensor if known == tensor.shape else replace(tensor, shape=known)


@dataclass(frozen=True, slots=True)
class DeclaredTensors:
    """All declarations of a configuration; empty if there are none.

    If `max_batch_size` is above 0, the first dimension of every input and output counts
    rows. If it is 0, it does not. None leaves this open. `state_inputs` and
    `state_outputs` are the tensors that sequences hide.
    """

    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    max_batch_size: int | None = None
    state_inputs: tuple[DeclaredTensor, ...] = ()
    state_outputs: tuple[DeclaredTensor, ...] = ()
    label: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    """The whole configuration in its format's JSON form, for models in Python."""

    @property
    def is_batched(self) -> bool:
        return bool(self.max_batch_size)

    @property
    def reshapes(self) -> Reshapes:
        """Return the Reshape nodes to insert when the model is compiled."""
        return Reshapes(
            self._reshapes(self.inputs), self._reshapes(self.outputs), self.label
        )

    def _reshapes(self, tensors: Iterable[DeclaredTensor]) -> tuple[Reshape, ...]:
        return tuple(
            Reshape(t.name, t.dims, t.reshape, self.is_batched)
            for t in tensors
            if t.reshape is not None
        )

    def input(self, name: str) -> DeclaredTensor | None:
        return next((t for t in self.inputs if t.name == name), None)

    def output(self, name: str) -> DeclaredTensor | None:
        return next((t for t in self.outputs if t.name == name), None)

    def changed_by(self, other: DeclaredTensors) -> DeclaredTensors:
        """Return these tensors with the changes of `other`."""
        said = other.max_batch_size is not None
        backend = other.document.get("backend", "")
        return DeclaredTensors(
            other.inputs or self.inputs,
            other.outputs or self.outputs,
            other.max_batch_size if said else self.max_batch_size,
            other.state_inputs or self.state_inputs,
            other.state_outputs or self.state_outputs,
            other.label or self.label,
            # Code may rely on this value, so it comes from the operator and never from
            # a request.
            {**self.document, "backend": backend} if backend else self.document,
        )

    def applied(self, spec: ModelSpec, rows: int = 0) -> ModelSpec:
        """Return the spec of all tensors of a model, with the declarations about them.

        `rows` is the largest batch if the declaration allows batches; 0 takes the
        declared size. Raises ValueError if the model differs.
        """
        problems: list[str] = []
        inputs = self._narrowed(
            spec.inputs, (*self.inputs, *self.state_inputs), "input", problems
        )
        outputs = self._narrowed(
            spec.outputs, (*self.outputs, *self.state_outputs), "output", problems
        )
        if self.is_batched and not problems:
            problems += self._without_rows(inputs, "input")
            problems += self._without_rows(outputs, "output")
        if problems:
            raise ValueError("; ".join(problems))
        if self.is_batched:
            most = rows or self.max_batch_size or 0
            return replace(spec, inputs=inputs, outputs=outputs, max_batch_size=most)
        return replace(spec, inputs=inputs, outputs=outputs)

    def _narrowed(
        self,
        tensors: Iterable[TensorSpec],
        declared: Iterable[DeclaredTensor],
        kind: str,
        problems: list[str],
    ) -> tuple[TensorSpec, ...]:
        found: dict[str, TensorSpec] = {tensor.name: tensor for tensor in tensors}
        for item in declared:
            tensor = found.get(item.name)
            if tensor is None:
                problems.append(f"{item.label}: the model has no {kind} '{item.name}'")
                continue
            try:
                found[item.name] = item.narrowed(tensor, kind, batched=self.is_batched)
            except ValueError as e:
                problems.append(str(e))
        return tuple(found.values())

    def _without_rows(self, tensors: Iterable[TensorSpec], kind: str) -> list[str]:
        """Return complaints about tensors of a model whose rows cannot be counted."""
        return [
            f"{self.label}: max_batch_size is {self.max_batch_size}, but "
            f"{kind} '{tensor.name}' {why}"
            for tensor in tensors
            if tensor.name not in (PYTHON_STEP, PYTHON_MORE)
            if (why := _why_no_rows(tensor))
        ]

    def visible(self, spec: ModelSpec, everything: ModelSpec) -> ModelSpec:
        """Return the part of `everything` that requests see; `spec` is not hidden from
        them.

        Raises ValueError for undeclared inputs: no client would send them.
        """
        if self.inputs:
            names = [tensor.name for tensor in self.inputs]
            more = [t.name for t in spec.inputs if t.name not in names]
            if more:
                msg = (
                    f"{self.label}: the model also has the input '{more[0]}', which "
                    f"is not among the declared {names}"
                )
                raise ValueError(msg)
        if not self.outputs:
            return spec
        shown = {tensor.name for tensor in self.outputs}
        outputs = tuple(t for t in everything.outputs if t.name in shown)
        return replace(spec, outputs=outputs)


def _why_no_rows(tensor: TensorSpec) -> str:
    """Return why the first dimension cannot count rows; empty if it can."""
    if tensor.shape is None:
        return "has no known shape"
    if not tensor.shape:
        return "has no dimension for rows"
    if tensor.shape[0] >= 0 or tensor.multiple > 1:
        return (
            f"has a fixed first dimension (its shape is {list(tensor.shape)}); to "
            "fill batches up, add dynamic_batching, or batching = true in config.toml"
        )
    return ""


def _fits(declared: tuple[int, ...], model: tuple[int, ...]) -> bool:
    """Return whether some tensor has both shapes; -1 is any dimension."""
    return len(declared) == len(model) and all(
        a == b or a < 0 or b < 0 for a, b in zip(declared, model, strict=True)
    )
