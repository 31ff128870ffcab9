"""Gradients: make the graph that computes the vector-Jacobian product of another.

The gradient graph takes the gradients of the provided outputs, then every forward
tensor that a gradient operator needs. Needed tensors that are neither inputs nor
outputs of the forward graph become outputs of the graph and of all its calls. If a loop
or a conditional calls it, they are computed again instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from popir.aliases import backward_settings, changed_inputs, settings_beside
from popir.dependence import branches, dependents, reached_by
from popir.errors import IrError, NotYet
from popir.gradient_records import gradient_record
from popir.ir import IrGraph, IrTensor, Operator
from popir.records import GradRule, OpCall, Spec, has_gradient

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class GradientConnection:
    """Meaning of an input or output of a gradient graph."""

    tensor: IrTensor
    """The tensor of the forward graph."""
    is_gradient: bool
    """True if its gradient is meant, not the tensor itself."""


@dataclass(eq=False, slots=True)
class Gradients:
    """A gradient graph, and the meanings of its inputs and outputs, in order."""

    graph: IrGraph
    forward: IrGraph
    inputs: list[GradientConnection] = field(default_factory=list)
    outputs: list[GradientConnection] = field(default_factory=list)


Known = dict[IrGraph, Gradients]


def gradient_name(tensor: IrTensor) -> str:
    """Return the name of the gradient of `tensor`."""
    return f"Gradient___{tensor.name}"


def differentiate(
    graph: IrGraph,
    provided: Sequence[IrTensor] | None = None,
    required: Sequence[IrTensor] | None = None,
    known: Mapping[IrGraph, Gradients] | None = None,
) -> Known:
    """Return the gradient graphs of `graph` and of the graphs that it calls.

    provided: outputs whose gradients are given; default: all outputs. required: inputs
    whose gradients are wanted; default: all inputs. known: existing gradient graphs of
    called graphs. Raises IrError if there is no gradient, or `graph` changes tensors in
    place.
    """
    made: Known = {}
    _Differentiation(
        graph,
        list(graph.outputs if provided is None else provided),
        list(graph.inputs if required is None else required),
        dict(known or {}),
        made,
    ).run()
    return made


class _Differentiation:
    def __init__(
        self,
        graph: IrGraph,
        provided: list[IrTensor],
        required: list[IrTensor],
        known: Mapping[IrGraph, Gradients],
        made: Known,
    ) -> None:
        self._graph = graph
        self._provided = provided
        self._required = required
        self._known = known
        self._made = made
        self._backward = graph.ir.new_gradient_graph(graph)
        self._can_add = all(
            op.type == "Call" and not op.graph.is_loop_body for op in graph.callers
        )
        self._connected = {*graph.inputs, *graph.outputs}
        self._totals: dict[IrTensor, IrTensor] = {}
        self._parts: dict[IrTensor, list[IrTensor]] = {}
        self._forward: dict[IrTensor, IrTensor] = {}
        """By forward tensor: its counterpart in the gradient graph."""
        self._needed: dict[IrTensor, IrTensor] = {}
        """The forward tensors that are inputs of the gradient graph."""

    def run(self) -> Gradients:
        _check(self._graph)
        for tensor in self._provided:
            name = gradient_name(tensor)
            spec = Spec(tensor.dtype, tensor.shape, tensor.spec.meta_shape)
            made = self._backward.add_input(spec, name)
            self._parts.setdefault(tensor, []).append(made)
        self._depends = dependents(self._graph, self._required)
        self._useful = self._backward_reach()
        for operator in reversed(list(self._graph.operators)):
            self._operator(operator)
        result = Gradients(self._backward, self._graph)
        for tensor in self._required:
            total = self._total(tensor)
            if total is None:
                raise IrError(
                    f"Unable to provide required gradient output: the gradient of "
                    f"{tensor.id!r} of graph {self._graph.id!r} does not depend on the "
                    f"gradients provided ({', '.join(t.id for t in self._provided)})"
                )
            self._backward.outputs.append(total)
            result.outputs.append(GradientConnection(tensor, True))
        self._finish_inputs(result)
        self._made[self._graph] = result
        return result

    def _backward_reach(self) -> dict[IrTensor, int]:
        """Return how many gradients arrive at each forward tensor."""
        arriving: dict[IrTensor, int] = {}
        for tensor in self._provided:
            arriving[tensor] = arriving.get(tensor, 0) + 1
        for operator in reversed(self._graph.operators):
            if not any(t in arriving for t in operator.outputs):
                continue
            for index in self._given_by(operator, arriving):
                tensor = operator.inputs[index]
                arriving[tensor] = arriving.get(tensor, 0) + 1
        return arriving

    def _given_by(
        self, operator: Operator, arriving: Collection[IrTensor]
    ) -> list[int]:
        """Return the inputs to which `operator` passes gradients."""
        if operator.type in ("Call", "If"):
            return [
                n
                for called, skipped in branches(operator)
                for n in self._given_by_graph(operator, called, skipped, arriving)
            ]
        return [
            index
            for rule in self._rules(operator)
            for index in rule.gives
            if has_gradient(operator.inputs[index].spec)
        ]

    def _given_by_graph(
        self,
        operator: Operator,
        called: IrGraph,
        skipped: int,
        arriving: Collection[IrTensor],
    ) -> list[int]:
        """Return the inputs to which a graph that `operator` runs passes gradients."""
        pairs = zip(called.outputs, operator.outputs, strict=False)
        outputs = [inner for inner, outer in pairs if outer in arriving]
        if called in self._known:
            reached = {c.tensor for c in self._known[called].outputs}
        else:
            reached = reached_by(called, outputs)
        given = operator.inputs[skipped : skipped + len(called.inputs)]
        return [
            n + skipped
            for n, (inner, outer) in enumerate(zip(called.inputs, given, strict=True))
            if outer in self._depends and inner in reached
        ]

    def _rules(self, operator: Operator) -> list[GradRule]:
        """Return the gradient operators with at least one useful result."""
        found = operator.record.grads(operator.call) or ()
        return [
            rule
            for rule in found
            if any(operator.inputs[index] in self._depends for index in rule.gives)
        ]

    def _total(self, tensor: IrTensor) -> IrTensor | None:
        """Return the whole gradient of `tensor`: a Sum if several parts exist."""
        if tensor not in self._totals:
            parts = self._parts.get(tensor)
            if not parts:
                return None
            total = parts[0]
            if len(parts) > 1:
                names = [gradient_name(tensor)]
                where = settings_beside(tensor)
                made = self._backward.add("Sum", parts, names, None, where)
                total = made.outputs[0]
            self._totals[tensor] = total
        return self._totals[tensor]

    def _operator(self, operator: Operator) -> None:
        gradients = [self._total(t) for t in operator.outputs]
        if all(gradient is None for gradient in gradients):
            return
        if operator.record.refuses and self._depends.issuperset(operator.inputs[:1]):
            raise IrError(
                f"operator {operator} of graph {self._graph.id!r} cannot be "
                f"differentiated: {operator.record.refuses}"
            )
        if operator.type == "Call":
            self._call(operator)
            return
        if operator.type == "If":
            self._conditional(operator)
            return
        rules = self._rules(operator)
        for number, gradient in enumerate(gradients):
            if (
                gradient is not None
                and operator.outputs[number].dtype.is_float
                and rules
                and all(f"g{number}" not in rule.needs for rule in rules)
            ):
                raise NotYet(
                    f"gradients of gradients through {operator}: that of its result "
                    f"{number}"
                )
        call = operator.call
        for rule in rules:
            self._apply(operator, call, rule, gradients)

    def _apply(
        self,
        operator: Operator,
        call: OpCall,
        rule: GradRule,
        gradients: list[IrTensor | None],
    ) -> None:
        inputs = []
        for need in rule.needs:
            number = int(need[1:])
            if need[0] == "g":
                given = gradients[number]
                if given is None:
                    given = self._zero(operator.outputs[number])
                inputs.append(given)
            else:
                side = operator.inputs if need[0] == "i" else operator.outputs
                inputs.append(self._here(side[number]))
        names = [self._name(operator.inputs[index]) for index in rule.gives]
        where = backward_settings(operator)
        if operator.type == "PrintTensor" and operator.attributes["print_gradient"]:
            attributes = dict(operator.attributes)
            attributes["title"] = f"{attributes['title']}_gradient"
            attributes["print_self"], attributes["print_gradient"] = True, False
            made = self._backward.add("PrintTensor", inputs, names, attributes, where)
        else:
            made = self._backward.add(
                gradient_record(rule),
                inputs,
                names,
                {**operator.attributes, "forward": call},
                where,
            )
        for index, result in zip(rule.gives, made.outputs, strict=True):
            self._arrived(operator.inputs[index], result)

    def _name(self, tensor: IrTensor) -> str:
        name = gradient_name(tensor)
        return name if self._useful.get(tensor, 0) < 2 else f"{name}_part"

    def _arrived(self, tensor: IrTensor, gradient: IrTensor) -> None:
        if has_gradient(tensor.spec):
            self._parts.setdefault(tensor, []).append(gradient)

    def _zero(self, like: IrTensor) -> IrTensor:
        attributes = {"dtype": like.dtype, "shape": like.shape, "meta_shape": ()}
        name = gradient_name(like)
        where = settings_beside(like)
        return self._backward.add("Init", [], [name], attributes, where).outputs[0]

    def _here(self, tensor: IrTensor) -> IrTensor:
        """Return a forward tensor in the gradient graph."""
        found = self._forward.get(tensor)
        if found is not None:
            return found
        back = self._backward
        if tensor.kind == "constant":
            made = back.new_tensor(
                tensor.spec, "constant", tensor.name, (), tensor.data
            )
        elif tensor in self._connected or self._can_add or tensor.producer is None:
            made = back.new_tensor(tensor.spec, "input", tensor.name)
            self._needed[tensor] = made
        else:
            made = self._again(tensor.producer, tensor)
        self._forward[tensor] = made
        return made

    def _again(self, operator: Operator, wanted: IrTensor) -> IrTensor:
        """Compute the result of `operator` in the gradient graph too."""
        copy = self._backward.add(
            operator.record,
            [self._here(t) for t in operator.inputs],
            [t.name for t in operator.outputs],
            operator.attributes,
            settings_beside(wanted),
        )
        for old, new in zip(operator.outputs, copy.outputs, strict=True):
            self._forward.setdefault(old, new)
        return self._forward[wanted]

    def _call(self, operator: Operator) -> None:
        (called,) = operator.called_graphs
        inner, inputs = self._gradients_of(operator, called, 0)
        if inner is None:
            return
        positions = [called.inputs.index(c.tensor) for c in inner.outputs]
        made = self._backward.add(
            "Call",
            inputs,
            [self._name(operator.inputs[n]) for n in positions],
            {
                "graphs": (inner.graph,),
                "results": [t.spec for t in inner.graph.outputs],
            },
            backward_settings(operator),
        )
        for n, result in zip(positions, made.outputs, strict=True):
            if operator.inputs[n] in self._depends:
                self._arrived(operator.inputs[n], result)

    def _conditional(self, operator: Operator) -> None:
        """Return a conditional of the branches' gradients: each branch gives its own,
        and zeros for the inputs of the other.
        """
        found = [
            (called, skipped, *self._gradients_of(operator, called, skipped))
            for called, skipped in branches(operator)
        ]
        wanted: list[int] = []
        for called, skipped, inner, _ in found:
            if inner is not None:
                wanted += [
                    called.inputs.index(c.tensor) + skipped for c in inner.outputs
                ]
        if not wanted:
            return
        given = [self._here(operator.inputs[0])]
        graphs = []
        for called, skipped, inner, inputs in found:
            given += inputs
            graphs.append(self._branch(operator, called, skipped, inner, wanted))
        made = self._backward.add(
            "If",
            given,
            [self._name(operator.inputs[n]) for n in wanted],
            {
                "graphs": tuple(graphs),
                "results": [operator.inputs[n].spec for n in wanted],
            },
            backward_settings(operator),
        )
        for n, result in zip(wanted, made.outputs, strict=True):
            if operator.inputs[n] in self._depends:
                self._arrived(operator.inputs[n], result)

    def _branch(
        self,
        operator: Operator,
        called: IrGraph,
        skipped: int,
        inner: Gradients | None,
        wanted: list[int],
    ) -> IrGraph:
        """Return the gradients of the inputs `wanted` if the branch
        `called` was taken.
        """
        graph = self._graph.ir.new_graph(f"{called.id}_bwd_branch")
        results: dict[int, IrTensor] = {}
        if inner is not None:
            inputs = [
                graph.add_input(t.spec, t.name.rpartition("/")[2])
                for t in inner.graph.inputs
            ]
            specs = [t.spec for t in inner.graph.outputs]
            attributes = {"graphs": (inner.graph,), "results": specs}
            made = graph.add("Call", inputs, [], attributes)
            positions = [called.inputs.index(c.tensor) + skipped for c in inner.outputs]
            results = dict(zip(positions, made.outputs, strict=True))
        for n in wanted:
            spec, where = operator.inputs[n].spec, settings_beside(operator.inputs[n])
            zero: dict[str, Any] = {
                "dtype": spec.dtype,
                "shape": spec.shape,
                "meta_shape": (),
            }
            graph.outputs.append(
                results.get(n) or graph.add("Init", [], [], zero, where).outputs[0]
            )
        return graph

    def _gradients_of(
        self, operator: Operator, called: IrGraph, skipped: int
    ) -> tuple[Gradients | None, list[IrTensor]]:
        """Return the gradients of a graph that `operator` runs, and their inputs; None
        if no gradient passes.

        Its inputs begin at `skipped`.
        """
        arriving = {t for t in operator.outputs if self._total(t) is not None}
        indices = self._given_by_graph(operator, called, skipped, arriving)
        if not indices:
            return None, []
        inner = self._known.get(called)
        if inner is None:
            if not called.can_be_differentiated:
                raise IrError(
                    f"graph {called.id!r}, called by {self._graph.id!r}, has been "
                    "marked as unsafe to autodiff; give its gradient graph"
                )
            pairs = zip(called.outputs, operator.outputs, strict=False)
            # A graph may give a tensor as several outputs.
            provided = [*dict.fromkeys(i for i, outer in pairs if outer in arriving)]
            required = [called.inputs[n - skipped] for n in dict.fromkeys(indices)]
            inner = self._inner(called, provided, required)
        inputs = []
        given: set[IrTensor] = set()
        for connection in inner.inputs:
            tensor = connection.tensor
            if connection.is_gradient:
                total = None
                if tensor not in given:
                    total = self._total_of_outputs(operator, called, tensor)
                    given.add(tensor)
                outer = operator.outputs[called.outputs.index(tensor)]
                inputs.append(total or self._zero(outer))
            elif tensor in called.inputs:
                at = called.inputs.index(tensor) + skipped
                inputs.append(self._here(operator.inputs[at]))
            else:
                at = called.outputs.index(tensor)
                inputs.append(self._here(operator.outputs[at]))
        return inner, inputs

    def _total_of_outputs(
        self, operator: Operator, called: IrGraph, tensor: IrTensor
    ) -> IrTensor | None:
        """Return the whole gradient of all outputs of a call that are `tensor`."""
        outer = zip(called.outputs, operator.outputs, strict=False)
        parts = [self._total(result) for inner, result in outer if inner is tensor]
        found = [part for part in parts if part is not None]
        if len(found) < 2:
            return found[0] if found else None
        where = settings_beside(tensor)
        names = [gradient_name(tensor)]
        return self._backward.add("Sum", found, names, None, where).outputs[0]

    def _inner(
        self, called: IrGraph, provided: list[IrTensor], required: list[IrTensor]
    ) -> Gradients:
        """Return the gradient graph of a called graph, shared by calls that want the
        same.
        """
        found = self._made.get(called)
        if found is not None:
            given = [c.tensor for c in found.inputs if c.is_gradient]
            wanted = [c.tensor for c in found.outputs]
            if given == provided and wanted == required:
                return found
        return _Differentiation(
            called, provided, required, self._known, self._made
        ).run()

    def _finish_inputs(self, result: Gradients) -> None:
        result.inputs = [GradientConnection(t, True) for t in self._provided]
        graph = self._graph
        added: list[IrTensor] = []
        for tensor in sorted(self._needed, key=lambda t: t.id):
            self._backward.inputs.append(self._needed[tensor])
            result.inputs.append(GradientConnection(tensor, False))
            if tensor in self._connected:
                continue
            graph.outputs.append(tensor)
            added.append(tensor)
        for caller in graph.callers:
            for tensor in added:
                outer = caller.graph.new_tensor(
                    tensor.spec, "result", "autodiff_output", caller.settings.scopes
                )
                outer.producer = caller
                caller.outputs.append(outer)
            caller.attributes["results"] = [
                *caller.attributes["results"],
                *(t.spec for t in added),
            ]


def _check(graph: IrGraph) -> None:
    for operator in graph.operators:
        if operator.type != "Loop" and changed_inputs(operator):
            raise IrError(
                f"The graph {graph.id} contains a modifying op, {operator}, and cannot "
                "be differentiated"
            )
