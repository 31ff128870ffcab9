"""Gradient graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import popart._internal.ir as _ir
import popir
from popxl.graph import Graph
from popxl.ops.call import CallSiteInfo
from popxl.tensor import Tensor


class ExpectedConnectionType(Enum):
    """Kinds of a connection: a forward tensor or its gradient."""

    Fwd = "Fwd"
    FwdGrad = "FwdGrad"


class ExpectedConnection:
    """Meaning of an input or output of a gradient graph."""

    _tensor: popir.IrTensor
    _is_gradient: bool

    def __init__(self) -> None:
        raise TypeError("popxl.transforms.ExpectedConnection cannot be constructed")

    @classmethod
    def _of(cls, below: popir.GradientConnection) -> ExpectedConnection:
        self = cls.__new__(cls)
        self._tensor = below.tensor
        self._is_gradient = below.is_gradient
        return self

    @classmethod
    def _from_pb(cls, fwd_graph: _ir.Graph, pb: _ir.ExpectedConnection) -> Any:
        tensor = fwd_graph.getTensor(pb.fwdId)._below
        is_gradient = pb.type is _ir.ExpectedConnectionType.FwdGrad
        return cls._of(popir.GradientConnection(tensor, is_gradient))

    @property
    def _pb_ec(self) -> _ir.ExpectedConnection:
        kind = _ir.ExpectedConnectionType[self.connection_type.name]
        return _ir.ExpectedConnection(self._tensor.id, kind)

    @property
    def fwd_tensor(self) -> Tensor:
        """The forward tensor."""
        return Tensor._of(self._tensor)

    @property
    def connection_type(self) -> ExpectedConnectionType:
        """Return whether the tensor or its gradient is meant."""
        kinds = ExpectedConnectionType
        return kinds.FwdGrad if self._is_gradient else kinds.Fwd

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ExpectedConnection)
            and self._tensor is other._tensor
            and self._is_gradient == other._is_gradient
        )

    def __hash__(self) -> int:
        return hash((id(self._tensor), self._is_gradient))

    def __repr__(self) -> str:
        return f"({self.connection_type.value}, {self.fwd_tensor})"


class GradGraphInfo:
    """A gradient graph, and how it connects to calls of its forward graph."""

    _gradients: popir.Gradients
    _forward: Graph

    def __init__(self) -> None:
        raise TypeError("popxl.transforms.GradGraphInfo cannot be constructed")

    @classmethod
    def _of(cls, below: popir.Gradients) -> GradGraphInfo:
        self = cls.__new__(cls)
        self._gradients = below
        self._forward = Graph._of(below.forward)
        return self

    @classmethod
    def _from_pb(
        cls, ir: _ir.Ir, fwd_graph: _ir.Graph, expected: _ir.BwdGraphInfo
    ) -> GradGraphInfo:
        def connections(given: Iterable[_ir.ExpectedConnection]) -> Any:
            made = (ExpectedConnection._from_pb(fwd_graph, each) for each in given)
            return [
                popir.GradientConnection(each._tensor, each._is_gradient)
                for each in made
            ]

        return cls._of(
            popir.Gradients(
                ir.getGraph(expected.bwdGraphId)._below,
                fwd_graph._below,
                connections(expected.expectedInputs),
                connections(expected.expectedOutputs),
            )
        )

    @property
    def graph(self) -> Graph:
        """The gradient graph."""
        return Graph._of(self._gradients.graph)

    @property
    def forward_graph(self) -> Graph:
        """The graph whose gradients it computes."""
        return self._forward

    @property
    def expected_inputs(self) -> tuple[ExpectedConnection, ...]:
        """Return the meanings of the gradient graph's inputs, in order."""
        return tuple(map(ExpectedConnection._of, self._gradients.inputs))

    @property
    def expected_outputs(self) -> tuple[ExpectedConnection, ...]:
        """Return the meanings of the gradient graph's outputs, in order."""
        return tuple(map(ExpectedConnection._of, self._gradients.outputs))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The forward tensors of the inputs."""
        return tuple(each.fwd_tensor for each in self.expected_inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The forward tensors of the outputs."""
        return tuple(each.fwd_tensor for each in self.expected_outputs)

    def inputs_dict(self, fwd_call_info: CallSiteInfo) -> dict[Tensor, Tensor]:
        """Return the caller's tensors that a call of the gradient graph needs besides
        the gradients: inputs and outputs of a call of the forward graph.
        """
        self._check(fwd_call_info)
        return {
            inner: fwd_call_info.graph_to_parent(each.fwd_tensor)
            # A program may add inputs of its own behind these, such as accumulators.
            for inner, each in zip(
                self.graph.inputs, self.expected_inputs, strict=False
            )
            if each.connection_type is ExpectedConnectionType.Fwd
        }

    def fwd_graph_ins_to_grad_parent_outs(
        self, grad_call_info: CallSiteInfo
    ) -> dict[Tensor, Tensor]:
        """Return the gradients in the caller for inputs of the forward graph."""
        return {
            each.fwd_tensor: grad_call_info.parent_output(index)
            for index, each in enumerate(self.expected_outputs)
        }

    def fwd_parent_ins_to_grad_parent_outs(
        self, fwd_call_info: CallSiteInfo, grad_call_info: CallSiteInfo
    ) -> dict[Tensor, Tensor]:
        """Return the gradients in the caller for tensors passed to the
        forward graph.
        """
        self._check(fwd_call_info)
        inner = self.fwd_graph_ins_to_grad_parent_outs(grad_call_info)
        return {fwd_call_info.graph_to_parent(t): g for t, g in inner.items()}

    def _check(self, fwd_call_info: CallSiteInfo) -> None:
        if fwd_call_info.called_graph != self._forward:
            raise TypeError(
                f"The call is of graph {fwd_call_info.called_graph.id!r}, the "
                f"gradients are of {self._forward.id!r}"
            )

    def __repr__(self) -> str:
        def lines(name: str, given: Iterable[ExpectedConnection]) -> str:
            inner = "".join(f"\n    {each}," for each in given)
            return f"  {name}=[{inner}\n  ]"

        return (
            f"GradGraphInfo[\n  graph={self.graph}\n"
            f"{lines('expected_inputs', self.expected_inputs)}\n"
            f"{lines('expected_outputs', self.expected_outputs)}\n]"
        )


def autodiff(
    graph: Graph,
    grads_provided: Iterable[Tensor] | None = None,
    grads_required: Iterable[Tensor] | None = None,
    called_graphs_grad_info: Mapping[Graph, GradGraphInfo] | None = None,
    return_all_grad_graphs: bool = False,
) -> GradGraphInfo | dict[Graph, GradGraphInfo]:
    """Make the graph that computes the gradients of `graph`.

    grads_provided: outputs whose gradients are given (default: all);
    grads_required: inputs whose gradients are wanted (default: all).
    """
    provided = None if grads_provided is None else list(grads_provided)
    required = None if grads_required is None else list(grads_required)
    known = {
        each._below: info._gradients
        for each, info in (called_graphs_grad_info or {}).items()
    }
    made = popir.differentiate(
        graph._below,
        None if provided is None else [t._below for t in provided],
        None if required is None else [t._below for t in required],
        known,
    )
    if not return_all_grad_graphs:
        return GradGraphInfo._of(made[graph._below])
    return {
        Graph._of(below): GradGraphInfo._of(found)
        for below, found in {**known, **made}.items()
    }
