"""Differentiable dependence between the tensors of a graph."""

from __future__ import annotations

from collections.abc import Iterable

from popir.ir import IrGraph, IrTensor, Operator
from popir.records import has_gradient


def dependents(graph: IrGraph, of: Iterable[IrTensor]) -> set[IrTensor]:
    """Return the tensors of `graph` that depend, differentiably, on some of `of`."""
    found = set(of)
    for operator in graph.operators:
        if operator.type in ("Call", "If"):
            for called, skipped in branches(operator):
                pairs = zip(called.inputs, operator.inputs[skipped:], strict=False)
                inside = dependents(called, [i for i, o in pairs if o in found])
                found.update(
                    outer
                    for inner, outer in zip(
                        called.outputs, operator.outputs, strict=False
                    )
                    if inner in inside
                )
            continue
        if operator.record.refuses and found.intersection(operator.inputs):
            found.update(operator.outputs)
            continue
        if not found.intersection(operator.inputs):
            continue
        rules = operator.record.grads(operator.call) or ()
        if any(operator.inputs[n] in found for rule in rules for n in rule.gives):
            found.update(t for t in operator.outputs if has_gradient(t.spec))
    return found


def reached_by(graph: IrGraph, outputs: Iterable[IrTensor]) -> set[IrTensor]:
    """Return the tensors of `graph` on which some of `outputs` depend,
    differentiably.
    """
    found = set(outputs)
    for operator in reversed(graph.operators):
        if not found.intersection(operator.outputs):
            continue
        if operator.type in ("Call", "If"):
            for called, skipped in branches(operator):
                pairs = zip(called.outputs, operator.outputs, strict=False)
                inside = reached_by(called, [i for i, o in pairs if o in found])
                found.update(
                    outer
                    for inner, outer in zip(
                        called.inputs, operator.inputs[skipped:], strict=False
                    )
                    if inner in inside
                )
            continue
        rules = operator.record.grads(operator.call) or ()
        found.update(operator.inputs[n] for rule in rules for n in rule.gives)
    return found


def branches(operator: Operator) -> list[tuple[IrGraph, int]]:
    """Return the graphs of a call or conditional, and the number of its first input for
    them.
    """
    graphs = operator.called_graphs
    if operator.type == "Call":
        return [(graphs[0], 0)]
    return [(graphs[0], 1), (graphs[1], 1 + len(graphs[0].inputs))]
