"""Graphs of operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import popir
from popart.operators import OpView
from popart.views import GraphView
from popxl.current import pop, push, state
from popxl.program import Program
from popxl.tensor import Constant, Tensor, Variable


class Graph:
    """A graph; one handle each. Made by an Ir."""

    _below: popir.IrGraph
    _ir: Program

    def __init__(self) -> None:
        raise TypeError("Cannot construct a popxl.Graph directly; use an Ir")

    @classmethod
    def _of(cls, below: popir.IrGraph) -> Graph:
        ir = Program._of(below.ir)
        found: Graph | None = ir._graphs.get(below)
        if found is None:
            found = cls.__new__(cls)
            found._below = below
            found._ir = ir
            ir._graphs[below] = found
        return found

    @classmethod
    def _from_pb(cls, pb: GraphView) -> Graph:
        return cls._of(pb._below)

    @property
    def _pb_graph(self) -> GraphView:
        return GraphView(self._below)

    @property
    def ir(self) -> Any:
        """The Ir it is part of."""
        return self._ir

    @property
    def id(self) -> str:
        """Unique in its Ir; empty for the main graph."""
        return self._below.id

    @property
    def name(self) -> str:
        """Return the id as a name."""
        return self._below.id

    @property
    def main_graph(self) -> Graph:
        """The main graph of its Ir."""
        return Graph._of(self._below.ir.main)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return the inputs in order."""
        return tuple(map(Tensor._of, self._below.inputs))

    @property
    def inputs_by_name(self) -> dict[str, Tensor]:
        """Name to input."""
        return {each.name: each for each in self.inputs}

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Return the outputs in order."""
        return tuple(map(Tensor._of, self._below.outputs))

    @property
    def _by_ref_inputs(self) -> set[Tensor]:
        below = self._below.inputs
        return {Tensor._of(t) for t in below if t.by_reference}

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors, including hidden results."""
        return tuple(map(Tensor._of, self._below.tensors.values()))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Return its variables; only the main graph has any."""
        return tuple(each for each in self.tensors if isinstance(each, Variable))

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Return its constants."""
        return tuple(each for each in self.tensors if isinstance(each, Constant))

    @property
    def called_graphs(self) -> tuple[Graph, ...]:
        """The graphs that it calls, each once."""
        called = dict.fromkeys(
            graph
            for operator in self._below.operators
            for graph in operator.called_graphs
        )
        return tuple(map(Graph._of, called))

    def get_tensor(self, tensor_id: str) -> Tensor:
        """Return the tensor with that id; ValueError if there is none."""
        found = self._below.tensors.get(tensor_id)
        if found is None:
            raise ValueError(f"There is no tensor {tensor_id!r} in graph {self.id!r}")
        return Tensor._of(found)

    def _create_tensor_id(self, name: str | None = None) -> str:
        """Return an id that is free, made of the names around and `name`."""
        parts = [*([self.id] if self.id else []), *state.scopes, name or "t"]
        return self._below.ir.free_id("/".join(parts), self._below.tensors)

    def register_op_created_hook(self, fn: Callable[[Any], Any]) -> int:
        """Call `fn` with every operator made from now on; return a handle
        to remove it.
        """
        return self._below.add_hook(lambda op: fn(OpView(op)))

    def remove_op_created_hook(self, handle: int) -> None:
        """Remove the hook; ValueError for an unknown handle."""
        if self._below.hooks.pop(handle, None) is None:
            raise ValueError(f"There is no hook {handle}")

    def __enter__(self) -> Graph:
        push(self._below)
        return self

    def __exit__(self, *_: object) -> None:
        pop()

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, Tensor):
            raise TypeError(f"Value must be of type popxl.Tensor. Type: {type(value)}")
        return value._below.graph is self._below

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            raise TypeError(f"Value must be of type popxl.Graph. Type: {type(other)}")
        return self._below is other._below

    def __hash__(self) -> int:
        return hash((self.id, self._ir))

    def __repr__(self) -> str:
        return f"Graph[id={self.id} name={self.name}]"
