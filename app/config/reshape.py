"""Reshapes: clients see another shape of a tensor than the model.

The compiler turns it into a Reshape node of the model, so it costs no extra step at run
time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_GIVEN = "__given"
_WANTED = "__wanted"
_SHAPE = "__shape"


@dataclass(frozen=True, slots=True)
class Reshape:
    """Shape of a tensor for clients (`dims`) and for the model (`shape`).

    Neither shape includes the batch dimension, which exists if `batched` is true. -1 is
    free.
    """

    name: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    batched: bool

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Reshape:
        """Make the object from JSON: the inverse of `dataclasses.asdict`."""
        dims, shape = tuple(message["dims"]), tuple(message["shape"])
        return cls(str(message["name"]), dims, shape, bool(message["batched"]))

    def target(self, dims: tuple[int, ...]) -> list[int]:
        """Return the argument of the node that gives a tensor these dimensions."""
        return [0, *dims] if self.batched else list(dims)

    def check(self) -> str:
        """Return why the reshape is impossible; empty if it is possible."""
        for dims in (self.dims, self.shape):
            if sum(dim < 0 for dim in dims) > 1:
                return f"{list(dims)} has more than one free dimension"
        known = [math.prod(abs(dim) for dim in d) for d in (self.dims, self.shape)]
        free = [any(dim < 0 for dim in d) for d in (self.dims, self.shape)]
        if not any(free) and known[0] != known[1]:
            return f"{list(self.dims)} and {list(self.shape)} differ in size"
        return ""


@dataclass(frozen=True, slots=True)
class Reshapes:
    """The reshapes of a model. `repr` is stable: part of a cache key.

    `label` names the configuration in errors.
    """

    inputs: tuple[Reshape, ...] = ()
    outputs: tuple[Reshape, ...] = ()
    label: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)

    def apply(self, model: Any) -> tuple[dict[str, str], dict[str, str]]:
        """Put the nodes into an `onnx.ModelProto`.

        The inputs and outputs are renamed in the graph. Returns their outside names by
        their names in the graph. Raises ValueError for a tensor that does not exist.
        """
        try:
            return self._applied(model.graph)
        except ValueError as e:
            raise ValueError(f"{self.label}: {e}") from None

    def _applied(self, graph: Any) -> tuple[dict[str, str], dict[str, str]]:
        for reshape in self.inputs:
            info = _find(graph.input, reshape.name, "input")
            _add_node(graph, f"{info.name}{_GIVEN}", info.name, reshape.shape, reshape)
            _set_shape(info, reshape)
            info.name += _GIVEN
        for reshape in self.outputs:
            info = _find(graph.output, reshape.name, "output")
            wanted = f"{info.name}{_WANTED}"
            _add_node(graph, info.name, wanted, reshape.dims, reshape, last=True)
            _set_shape(info, reshape)
            info.name = wanted
        return (
            {f"{r.name}{_GIVEN}": r.name for r in self.inputs},
            {f"{r.name}{_WANTED}": r.name for r in self.outputs},
        )


def _find(infos: Iterable[Any], name: str, kind: str) -> Any:
    for info in infos:
        if info.name == name:
            return info
    raise ValueError(f"the model has no {kind} '{name}'")


def _add_node(
    graph: Any,
    source: str,
    target: str,
    dims: tuple[int, ...],
    reshape: Reshape,
    *,
    last: bool = False,
) -> None:
    from onnx import TensorProto, helper

    shape, name = reshape.target(dims), f"{source}{_SHAPE}"
    graph.initializer.append(
        helper.make_tensor(name, TensorProto.INT64, [len(shape)], shape)
    )
    node = helper.make_node("Reshape", [source, name], [target], name=f"{name}_node")
    graph.node.insert(len(graph.node) if last else 0, node)


def _set_shape(info: Any, reshape: Reshape) -> None:
    """Declare the shape that clients see; the batch dimension is unchanged."""
    shape = info.type.tensor_type.shape
    batch = list(shape.dim[:1]) if reshape.batched else []
    if reshape.batched and not batch:
        msg = f"'{reshape.name}' has no batch dimension in the model"
        raise ValueError(msg)
    kept = [type(dim)() for dim in batch]
    for new, old in zip(kept, batch, strict=True):
        new.CopyFrom(old)
    del shape.dim[:]
    for dim in kept:
        shape.dim.add().CopyFrom(dim)
    for index, size in enumerate(reshape.dims):
        dim = shape.dim.add()
        if size < 0:
            dim.dim_param = f"{reshape.name}_{index}"
        else:
            dim.dim_value = size
