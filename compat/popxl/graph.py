"""Graphs of operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import popir
from popxl.context import pop, push
from popxl.tensor import Constant, Tensor, Variable

if TYPE_CHECKING:
    from popxl.ir import Ir


class Graph:
    """A graph; one handle each. Made by an Ir."""

    _pb_graph: popir.Graph
    _ir: Ir

    def __init__(self) -> None:
        raise TypeError("Cannot construct a popxl.Graph directly; use an Ir")

    @classmethod
    def _from_pb(cls, below: popir.Graph) -> Graph:
        from popxl.ir import Ir

        ir = Ir._from_pb(below.ir)
        found = ir._graphs.get(below)
        if found is None:
            found = cls.__new__(cls)
            found._pb_graph = below
            found._ir = ir
            ir._graphs[below] = found
        return found

    @property
    def ir(self) -> Ir:
        """The Ir it is part of."""
        return self._ir

    @property
    def id(self) -> str:
        """Unique in its Ir; empty for the main graph."""
        return self._pb_graph.id

    @property
    def name(self) -> str:
        """The same as its id."""
        return self._pb_graph.id

    @property
    def main_graph(self) -> Graph:
        """The main graph of its Ir."""
        return self._ir.main_graph

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """In order."""
        return tuple(map(Tensor._from_pb_tensor, self._pb_graph.inputs))

    @property
    def inputs_by_name(self) -> dict[str, Tensor]:
        """Name to input."""
        return {each.name: each for each in self.inputs}

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """In order."""
        return tuple(map(Tensor._from_pb_tensor, self._pb_graph.outputs))

    @property
    def _by_ref_inputs(self) -> set[Tensor]:
        below = self._pb_graph.inputs
        return {Tensor._from_pb_tensor(t) for t in below if t.by_reference}

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All, hidden results too."""
        return tuple(map(Tensor._from_pb_tensor, self._pb_graph.tensors.values()))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its variables; only the main graph has any."""
        return tuple(each for each in self.tensors if isinstance(each, Variable))

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Its constants."""
        return tuple(each for each in self.tensors if isinstance(each, Constant))

    @property
    def called_graphs(self) -> tuple[Graph, ...]:
        """The graphs that it calls, each once."""
        called = dict.fromkeys(
            graph
            for operator in self._pb_graph.operators
            for graph in operator.called_graphs
        )
        return tuple(map(Graph._from_pb, called))

    def get_tensor(self, tensor_id: str) -> Tensor:
        """The tensor of that id; ValueError if there is none."""
        found = self._pb_graph.tensors.get(tensor_id)
        if found is None:
            raise ValueError(f"There is no tensor {tensor_id!r} in graph {self.id!r}")
        return Tensor._from_pb_tensor(found)

    def register_op_created_hook(self, fn: Callable[[Any], Any]) -> int:
        """Call `fn` with every operator made from now on; a handle to remove it."""
        return self._pb_graph.add_hook(fn)

    def remove_op_created_hook(self, handle: int) -> None:
        """Call it no more; ValueError for an unknown handle."""
        if self._pb_graph.hooks.pop(handle, None) is None:
            raise ValueError(f"There is no hook {handle}")

    def __enter__(self) -> Graph:
        push(self)
        return self

    def __exit__(self, *_: object) -> None:
        pop()

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, Tensor):
            raise TypeError(f"Value must be of type popxl.Tensor. Type: {type(value)}")
        return value._pb_tensor.graph is self._pb_graph

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            raise TypeError(f"Value must be of type popxl.Graph. Type: {type(other)}")
        return self._pb_graph is other._pb_graph

    def __hash__(self) -> int:
        return hash((self.id, self._ir))

    def __repr__(self) -> str:
        return f"Graph[id={self.id} name={self.name}]"
