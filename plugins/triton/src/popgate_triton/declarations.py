"""The declarations of a ``config.pbtxt``, compared with the tensors of the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.config.declared import DeclaredTensor, DeclaredTensors
from app.config.reshape import Reshape, Reshapes
from app.spec import ModelSpec, TensorSpec
from engine import PYTHON_MORE, PYTHON_STEP


@dataclass(frozen=True)
class Declarations(DeclaredTensors):
    """All declarations of a configuration. `state_inputs` and `state_outputs` are the
    tensors that sequences hide.
    """

    state_inputs: tuple[DeclaredTensor, ...] = ()
    state_outputs: tuple[DeclaredTensor, ...] = ()

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

    def over(self, others: DeclaredTensors) -> DeclaredTensors:
        """Return other declarations with the changes that these make."""
        says_rows = self.max_batch_size is not None
        backend = self.document.get("backend", "")
        states = others if isinstance(others, Declarations) else Declarations()
        return Declarations(
            self.inputs or others.inputs,
            self.outputs or others.outputs,
            self.max_batch_size if says_rows else others.max_batch_size,
            self.label or others.label,
            # Code may rely on this value, so it comes from the operator and never from
            # a request.
            {**others.document, "backend": backend} if backend else others.document,
            self.state_inputs or states.state_inputs,
            self.state_outputs or states.state_outputs,
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
                found[item.name] = _narrowed(
                    item, tensor, kind, batched=self.is_batched
                )
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


def _narrowed(
    declared: DeclaredTensor, tensor: TensorSpec, kind: str, *, batched: bool
) -> TensorSpec:
    """Return the tensor of the model, narrowed by its declaration.

    Raises ValueError if they differ.
    """
    if declared.datatype and tensor.datatype != declared.datatype:
        msg = (
            f"{declared.label}: {kind} '{declared.name}' is declared as "
            f"{declared.datatype}, but the model has {tensor.datatype}"
        )
        raise ValueError(msg)
    shape = declared.shape(batched=batched)
    if shape is None:
        return tensor
    if tensor.shape is None:
        return replace(tensor, shape=shape)
    if not _fits(shape, tensor.shape):
        msg = (
            f"{declared.label}: {kind} '{declared.name}' is declared with shape "
            f"{list(shape)}, but the model has {list(tensor.shape)}"
        )
        raise ValueError(msg)
    known = tuple(map(max, shape, tensor.shape))
    return tensor if known == tensor.shape else replace(tensor, shape=known)


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
