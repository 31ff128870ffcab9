"""Choice between two graphs by a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import popir
from popart.operators import OpView
from popxl import context, current, dtypes
from popxl.graph import Graph
from popxl.ops.call import connected
from popxl.ops.utils import check_in_graph
from popxl.tensor import Tensor


class ConditionalSiteInfo:
    """A conditional that was made: its inputs and outputs on both sides."""

    def __init__(self, op: popir.Operator) -> None:
        self._operator = op
        self._graph = Graph._of(op.graph)

    @property
    def _op(self) -> OpView:
        return OpView(self._operator)

    @property
    def called_graph(self) -> tuple[Graph, Graph]:
        """The graph for True and that for False."""
        then, otherwise = map(Graph._of, self._operator.called_graphs)
        return then, otherwise

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Return the condition, then the inputs of both branches."""
        return tuple(Tensor._of(t) for t in self._operator.connected)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Return the outputs in the parent graph."""
        return tuple(map(Tensor._of, self._operator.outputs))

    def parent_input(self, idx: int) -> Tensor:
        """Return the input of that index; 0 is the condition."""
        if not 0 <= idx < len(self._operator.inputs):
            raise IndexError(f"There is no input {idx}")
        return self.inputs[idx]

    def parent_output(self, idx: int) -> Tensor:
        """Return the output of that index."""
        if not 0 <= idx < len(self._operator.outputs):
            raise IndexError(f"There is no output {idx}")
        return self.outputs[idx]

    def _sizes(self) -> tuple[int, int]:
        then, otherwise = self._operator.called_graphs
        return len(then.inputs), len(otherwise.inputs)

    def graph_to_parent_input_index(self, idx: int, then_branch: bool = True) -> int:
        """Return the index of a branch's input in the parent."""
        then, otherwise = self._sizes()
        if not 0 <= idx < (then if then_branch else otherwise):
            raise IndexError(f"The branch has no input {idx}")
        return 1 + idx + (0 if then_branch else then)

    def parent_to_graph_input_index(self, idx: int) -> int:
        """Return the index of a parent's input in its branch."""
        then, otherwise = self._sizes()
        if not 1 <= idx < 1 + then + otherwise:
            raise IndexError(f"Input {idx} goes to no branch")
        return idx - 1 if idx <= then else idx - 1 - then

    def is_parent_index_in_then_branch(self, idx: int) -> bool:
        """Return whether that input goes to the branch for True."""
        self.parent_to_graph_input_index(idx)
        return idx <= self._sizes()[0]

    def graph_to_parent_output_index(self, idx: int, then_branch: bool = True) -> int:
        """Return the index of a branch's output in the parent, which is the same."""
        if not 0 <= idx < len(self._operator.outputs):
            raise IndexError(f"There is no output {idx}")
        return idx

    def parent_to_graph_output_index(self, idx: int, then_branch: bool = True) -> int:
        """Return the index of a parent's output in a branch, which is the same."""
        return self.graph_to_parent_output_index(idx, then_branch)

    def graph_to_parent(self, graph_tensor: Tensor, then_branch: bool = True) -> Tensor:
        """Return the parent's tensor for an input or output of either branch.

        then_branch: which branch is searched first, if both are one graph.
        """
        for is_then in (then_branch, not then_branch):
            graph = self.called_graph[0 if is_then else 1]
            if graph_tensor in graph.inputs:
                index = graph.inputs.index(graph_tensor)
                return self.inputs[self.graph_to_parent_input_index(index, is_then)]
            if graph_tensor in graph.outputs:
                return self.outputs[graph.outputs.index(graph_tensor)]
        raise ValueError(f"{graph_tensor} is neither input nor output of the branch")

    def parent_to_graph(self, parent_tensor: Tensor) -> Tensor:
        """Return the first input of a branch that the parent's tensor feeds."""
        if parent_tensor not in self.inputs[1:]:
            raise ValueError(f"{parent_tensor} goes to no branch")
        index = 1 + self.inputs[1:].index(parent_tensor)
        branch = 0 if self.is_parent_index_in_then_branch(index) else 1
        inner = self.called_graph[branch].inputs
        return inner[self.parent_to_graph_input_index(index)]

    def set_parent_input_modified(self, *_: Any, **__: Any) -> NoReturn:
        """Raise an error: a conditional does not change its inputs."""
        raise NotImplementedError("A conditional cannot modify its inputs")


def conditional(
    cond: Tensor,
    then_branch: Graph,
    else_branch: Graph,
    then_inputs: Iterable[Any] | None = None,
    else_inputs: Iterable[Any] | None = None,
    then_inputs_dict: Mapping[Tensor, Any] | None = None,
    else_inputs_dict: Mapping[Tensor, Any] | None = None,
) -> tuple[Tensor, ...]:
    """Call one of two graphs; return its outputs."""
    return conditional_with_info(
        cond,
        then_branch,
        else_branch,
        then_inputs,
        else_inputs,
        then_inputs_dict,
        else_inputs_dict,
    ).outputs


def conditional_with_info(
    cond: Tensor,
    then_branch: Graph,
    else_branch: Graph,
    then_inputs: Iterable[Any] | None = None,
    else_inputs: Iterable[Any] | None = None,
    then_inputs_dict: Mapping[Tensor, Any] | None = None,
    else_inputs_dict: Mapping[Tensor, Any] | None = None,
    check_inputs: bool = True,
) -> ConditionalSiteInfo:
    """Call one of two graphs; return the connections to the parent."""
    parent = context.get_current_graph()
    check_in_graph(parent, cond=cond)
    if cond.dtype is not dtypes.bool or cond.nelms != 1:
        raise popir.IrError(
            f"The condition must be one bool, found {cond.dtype}{list(cond.shape)}"
        )
    graphs = then_branch._below, else_branch._below
    if any(each.by_reference for graph in graphs for each in graph.inputs):
        raise NotImplementedError("Inputs by reference of a conditional")
    then = connected(
        then_branch, then_inputs or (), then_inputs_dict, check_inputs, "then_branch"
    )
    otherwise = connected(
        else_branch, else_inputs or (), else_inputs_dict, check_inputs, "else_branch"
    )
    first, second = (graph.outputs for graph in graphs)
    if len(first) != len(second):
        raise ValueError(
            "The branches must have the same number of outputs: "
            f"{len(first)} and {len(second)}"
        )
    for a, b in zip(first, second, strict=True):
        if a.shape != b.shape or a.dtype is not b.dtype:
            raise popir.IrError(f"The outputs {a} and {b} of the branches differ")
    operator = parent._below.add(
        "If",
        [cond._below, *then, *otherwise],
        [f"{a.name}_or_{b.name}" for a, b in zip(first, second, strict=True)],
        {"graphs": graphs, "results": [each.spec for each in first]},
        current.settings(),
    )
    return ConditionalSiteInfo(operator)
