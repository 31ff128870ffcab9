"""Calls of graphs, once or in a loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import popir
from popart.operators import OpView
from popxl import context, current
from popxl.graph import Graph
from popxl.tensor import Tensor, constant
from popxl.utils import table_to_string


def flattened(inputs: Iterable[Any]) -> list[Any]:
    """Return positional inputs, with iterables spread, except strings and tensors."""
    found: list[Any] = []
    for each in inputs:
        if (
            isinstance(each, str | Tensor)
            or not hasattr(each, "__iter__")
            or (isinstance(each, np.ndarray) and each.ndim == 0)
        ):
            found.append(each)
        else:
            found.extend(each)
    return found


def connected(
    graph: Graph,
    inputs: Iterable[Any],
    inputs_dict: Mapping[Tensor, Any] | None,
    check_inputs: bool,
    word: str = "called",
) -> list[popir.IrTensor]:
    """Return the parent tensor of each input of `graph`, in order.

    Unless `check_inputs`, missing ones may be connected later.
    """
    parent = context.get_current_graph()
    wanted = graph.inputs
    given = flattened(inputs)
    if len(given) > len(wanted):
        raise ValueError(
            f"Too many inputs have been provided: {len(given)} for the "
            f"{len(wanted)} of graph {graph.id!r}"
        )
    found: dict[Tensor, Any] = dict(zip(wanted, given, strict=False))
    for inner, outer in (inputs_dict or {}).items():
        if not isinstance(inner, Tensor) or inner not in wanted:
            raise ValueError(
                f"Tensor {inner!r} is not an input: it is not in the {word} graph "
                f"{graph.id!r}"
            )
        if inner in found:
            raise ValueError(f"Graph input tensor is specified twice: {inner!r}")
        found[inner] = outer
    missing = [each for each in wanted if each not in found]
    if missing and check_inputs:
        rows = [["Graph input", "Connected to"]]
        rows += [[each.name, str(found.get(each, "MISSING"))] for each in wanted]
        raise ValueError(
            f"Not enough inputs have been provided: {len(found)} for the "
            f"{len(wanted)} of graph {graph.id!r}.\n{table_to_string(rows)}"
        )
    return [
        _outer(parent, inner, found[inner])._below
        if inner in found
        else parent._below.unconnected(inner.spec._below)
        for inner in wanted
    ]


def _outer(parent: Graph, inner: Tensor, given: Any) -> Tensor:
    if given is None or isinstance(given, str):
        raise TypeError(f"{given!r} cannot become the input {inner.name!r}")
    outer = given if isinstance(given, Tensor) else constant(given, inner.dtype)
    if outer not in parent:
        raise ValueError(
            f"Tensor {outer.id!r} is not in the parent graph {parent.id!r}"
        )
    if outer.shape != inner.shape or outer.dtype is not inner.dtype:
        raise popir.IrError(
            f"Input {inner.id!r} is {inner.dtype}{list(inner.shape)}; {outer.id!r} is "
            f"{outer.dtype}{list(outer.shape)}"
        )
    return outer


class CallSiteInfo:
    """A call or loop that was made: its inputs and outputs on both sides."""

    def __init__(self, op: popir.Operator, skipped: int = 0) -> None:
        self._operator = op
        self._skipped = skipped
        # Keep the Ir as long as the operator is needed, because handles end with their
        # Ir.
        self._graph = Graph._of(op.graph)

    @property
    def _op(self) -> OpView:
        return OpView(self._operator)

    @property
    def called_graph(self) -> Graph:
        """Return the graph that it runs; for a loop the wrapper."""
        return Graph._of(self._operator.called_graphs[0])

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return the inputs in the parent graph."""
        return tuple(Tensor._of(t) for t in self._operator.connected)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Return the outputs in the parent graph; autodiff may add some."""
        return tuple(map(Tensor._of, self._operator.outputs))

    def parent_input(self, idx: int) -> Tensor:
        """Return the input of that index."""
        at = idx - self._skipped
        inputs = self._operator.inputs
        if not 0 <= at < len(inputs) or inputs[at].kind == "unconnected":
            raise IndexError(f"There is no input {idx}")
        return Tensor._of(inputs[at])

    def parent_output(self, idx: int) -> Tensor:
        """Return the output of that index."""
        if not 0 <= idx < len(self._operator.outputs):
            raise IndexError(f"There is no output {idx}")
        return self.outputs[idx]

    def graph_to_parent_input_index(self, idx: int) -> int:
        """Return the index of a graph's input in the parent."""
        return idx

    def parent_to_graph_input_index(self, idx: int) -> int:
        """Return the index of a parent's input in the graph."""
        return idx

    def graph_to_parent_output_index(self, idx: int) -> int:
        """Return the index of a graph's output in the parent."""
        return idx - 1 if self._skipped else idx

    def parent_to_graph_output_index(self, idx: int) -> int:
        """Return the index of a parent's output in the graph."""
        return idx + 1 if self._skipped else idx

    def graph_to_parent(self, graph_tensor: Tensor) -> Tensor:
        """Return the parent's tensor for an input or output of the graph."""
        called = self.called_graph
        if graph_tensor in called.inputs:
            index = called.inputs.index(graph_tensor)
            return self.parent_input(self.graph_to_parent_input_index(index))
        if graph_tensor in called.outputs:
            index = called.outputs.index(graph_tensor)
            return self.parent_output(self.graph_to_parent_output_index(index))
        raise ValueError(
            f"{graph_tensor} is neither an input nor an output of the called graph"
        )

    def parent_to_graph(self, parent_tensor: Tensor) -> Tensor:
        """Return the first input of the graph that the parent's tensor feeds."""
        if parent_tensor not in self.inputs:
            raise ValueError(f"{parent_tensor} is not an input of the call")
        index = self._operator.inputs.index(parent_tensor._below) + self._skipped
        return self.called_graph.inputs[self.parent_to_graph_input_index(index)]

    def set_parent_input_modified(
        self, parent_tensor: Tensor, infer_modified_regions: bool = False
    ) -> None:
        """Write the final value of that input back to the parent's tensor; in a loop
        the next iteration begins with it.
        """
        if parent_tensor not in self.inputs:
            raise ValueError(f"{parent_tensor} is not an input of the call")
        for index, tensor in enumerate(self._operator.inputs):
            if tensor is parent_tensor._below:
                self._operator.modified.add(index)
                if self._operator.type == "Loop":
                    (inside,) = self._operator.called_graphs[0].operators
                    inside.modified.add(index)

    def __repr__(self) -> str:
        return f"{type(self).__name__}[{self._operator} of {self.called_graph}]"


def call(
    graph: Graph, *inputs: Any, inputs_dict: Mapping[Tensor, Any] | None = None
) -> tuple[Tensor, ...]:
    """Call `graph`; return its outputs."""
    return call_with_info(graph, *inputs, inputs_dict=inputs_dict).outputs


def call_with_info(
    graph: Graph,
    *inputs: Any,
    inputs_dict: Mapping[Tensor, Any] | None = None,
    check_inputs: bool = True,
) -> CallSiteInfo:
    """Call `graph`; return the connections to the parent."""
    outer = connected(graph, inputs, inputs_dict, check_inputs)
    return CallSiteInfo(add_call(graph, outer))


def add_call(graph: Graph, outer: list[popir.IrTensor]) -> popir.Operator:
    """Return the operator of a call in the current graph."""
    below = graph._below
    if below is context.get_current_graph()._below:
        raise popir.IrError(f"Graph {graph.id!r} cannot call itself")
    return context.get_current_graph()._below.add(
        "Call",
        outer,
        [each.name for each in below.outputs],
        {"graphs": (below,), "results": [each.spec for each in below.outputs]},
        current.settings(),
    )


def repeat(
    graph: Graph,
    repeat_count: int,
    *inputs: Any,
    inputs_dict: Mapping[Tensor, Any] | None = None,
) -> tuple[Tensor, ...]:
    """Call `graph` repeatedly: output i is input i of the next call."""
    info = repeat_with_info(graph, repeat_count, *inputs, inputs_dict=inputs_dict)
    return info.outputs


def repeat_with_info(
    graph: Graph,
    repeat_count: int,
    *inputs: Any,
    inputs_dict: Mapping[Tensor, Any] | None = None,
    check_inputs: bool = True,
) -> CallSiteInfo:
    """Call `graph` repeatedly; return the connections to the parent."""
    if repeat_count < 0:
        raise ValueError(f"Repeat count must be >= 0: {repeat_count}")
    below = graph._below
    if len(below.inputs) < len(below.outputs):
        raise ValueError(
            f"To repeat the subgraph ({graph.id}) the number of inputs must be >= the "
            f"number of outputs: {len(below.inputs)} < {len(below.outputs)}"
        )
    outer = connected(graph, inputs, inputs_dict, check_inputs)
    for made, taken in zip(below.outputs, below.inputs, strict=False):
        if made.shape != taken.shape or made.dtype is not taken.dtype:
            raise popir.IrError(
                f"Output {made} of the repeated graph cannot be its input {taken}"
            )
    wrapper = _wrapper(below)
    operator = context.get_current_graph()._below.add(
        "Loop",
        outer,
        [each.name for each in below.outputs],
        {
            "graphs": (wrapper,),
            "results": [each.spec for each in below.outputs],
            "count": int(repeat_count),
        },
        current.settings(),
    )
    return CallSiteInfo(operator, 2)


def _wrapper(below: popir.IrGraph) -> popir.IrGraph:
    """Return a graph with counter, condition and the user's inputs as inputs, and with
    condition and outputs as outputs.
    """
    from popxl import dtypes

    wrapper = below.ir.new_graph(f"{below.id}__loop_wrapper")
    wrapper.is_loop_body = True
    wrapper.add_input(popir.Spec(dtypes.int32._below, ()), "iterator")
    keep_going = wrapper.add_input(popir.Spec(dtypes.bool._below, ()), "keep_going")
    inner = [
        wrapper.add_input(each.spec, each.name, (), each.by_reference)
        for each in below.inputs
    ]
    made = wrapper.add(
        "Call",
        inner,
        [each.name for each in below.outputs],
        {"graphs": (below,), "results": [each.spec for each in below.outputs]},
    )
    wrapper.outputs += [keep_going, *made.outputs]
    return wrapper
