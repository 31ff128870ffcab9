"""The tensors that a configuration of another server declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.config.reshape import Reshapes
from app.spec import ModelSpec


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


@dataclass(frozen=True)
class DeclaredTensors:
    """All declarations of a configuration; by default there are none. A plugin that
    translates configurations has a subclass.

    If `max_batch_size` is above 0, the first dimension of every input and output counts
    rows. If it is 0, it does not. None leaves this open.
    """

    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    max_batch_size: int | None = None
    label: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    """The whole configuration in its format's JSON form, for models in Python."""

    @property
    def is_batched(self) -> bool:
        return bool(self.max_batch_size)

    @property
    def reshapes(self) -> Reshapes:
        """Return the Reshape nodes to insert when the model is compiled."""
        return Reshapes()

    def input(self, name: str) -> DeclaredTensor | None:
        return next((t for t in self.inputs if t.name == name), None)

    def output(self, name: str) -> DeclaredTensor | None:
        return next((t for t in self.outputs if t.name == name), None)

    def over(self, others: DeclaredTensors) -> DeclaredTensors:
        """Return other declarations with the changes that these make."""
        return others

    def applied(self, spec: ModelSpec, rows: int = 0) -> ModelSpec:
        """Return the spec of all tensors of a model, with the declarations about them.

        `rows` is the largest batch if the declaration allows batches; 0 takes the
        declared size. Raises ValueError if the model differs.
        """
        return spec

    def visible(self, spec: ModelSpec, everything: ModelSpec) -> ModelSpec:
        """Return the part of `everything` that requests see; `spec` is not hidden from
        them.

        Raises ValueError for undeclared inputs: no client would send them.
        """
        return spec
