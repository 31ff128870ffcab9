"""Analysis of storage: which tensors share it, which inputs a graph changes, refused
orders, and on which device it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import prod

from popir.errors import IrError
from popir.ir import IrGraph, IrTensor, Operator
from popir.records import OperatorSettings

Roots = Mapping[IrTensor, frozenset[IrTensor]]
#: By copy between devices: the attribute that names the device of its input.
_FROM = {"IpuCopy": "source", "IpuCopyGrad": "destination"}


def roots_of(graph: IrGraph) -> Roots:
    """Return for each tensor of `graph` the tensors whose storage it shares."""
    found: dict[IrTensor, frozenset[IrTensor]] = {}

    def roots(tensor: IrTensor) -> frozenset[IrTensor]:
        return found.get(tensor) or frozenset({tensor})

    for operator in _separate(graph.operators):
        if not operator.outputs:
            continue
        record = operator.record
        if record.put is not None:
            found[operator.outputs[0]] = frozenset().union(
                *(roots(t) for t in operator.inputs)
            )
        elif record.writes or operator.type == "HostLoad":
            found[operator.outputs[0]] = roots(operator.inputs[0])
    for tensor in graph.tensors.values():
        found.setdefault(tensor, frozenset({tensor}))
    return found


def sharing(tensor: IrTensor) -> list[IrTensor]:
    """Return the tensors of its graph that share storage with `tensor`, including
    itself.
    """
    roots = roots_of(tensor.graph)
    return [t for t, found in roots.items() if found & roots[tensor]]


def _separate(operators: Iterable[Operator]) -> Iterator[Operator]:
    """Yield the operators, with merged exchanges replaced by their parts."""
    for operator in operators:
        yield from operator.attributes.get("parts", (operator,))


def inner_graph(operator: Operator) -> tuple[IrGraph, int] | None:
    """Return the graph that may change inputs of `operator`, and the number of inputs
    before them.
    """
    if operator.type == "Call":
        return operator.called_graphs[0], 0
    if operator.type == "Loop":
        return operator.called_graphs[0], 2
    return None


def changed_inputs(operator: Operator) -> set[int]:
    """Return the inputs whose storage `operator` changes, including changes in graphs
    that it calls.
    """
    changed = set(operator.written())
    first = 0
    for part in operator.attributes.get("parts", ()):
        changed |= {first + index for index in part.written()}
        first += len(part.inputs)
    inner = inner_graph(operator)
    if inner is not None:
        graph, skipped = inner
        inside = changed_roots(graph)
        for index in range(len(operator.inputs)):
            tensor = graph.inputs[index + skipped]
            if tensor.by_reference and tensor in inside:
                changed.add(index)
    return changed


def changed_roots(graph: IrGraph) -> set[IrTensor]:
    """Return the tensors of `graph` whose storage its operators change."""
    roots = roots_of(graph)
    return {
        root
        for operator in graph.operators
        for index in changed_inputs(operator)
        for root in roots.get(operator.inputs[index], ())
    }


def check_order(graph: IrGraph) -> None:
    """Raise IrError if a result depends on an order that the program does not fix.

    An operator that changes storage must come before or after every other one that
    reads or changes it, by data or by `in_sequence`.
    """
    contested = _contested(graph)
    if not contested:
        return
    before = _predecessors(graph)
    bit = {operator: 1 << n for n, operator in enumerate(graph.operators)}
    for root, touching in contested.items():
        for first, second in _pairs(touching):
            if not before[second] & bit[first]:
                raise IrError(
                    f"Inplacing ambiguity detected. Nothing says which of {first} and "
                    f"{second} of graph {graph.id!r} comes first, and the storage of "
                    f"{root.id!r} is changed: put them into an order with "
                    "popxl.in_sequence"
                )


def _contested(graph: IrGraph) -> dict[IrTensor, list[tuple[Operator, bool]]]:
    """Return storage that some operator changes and another uses: its users, and
    whether each changes it.
    """
    roots = roots_of(graph)
    users: dict[IrTensor, list[tuple[Operator, bool]]] = {}
    for operator in graph.operators:
        changed = changed_inputs(operator)
        touched: dict[IrTensor, bool] = {}
        for index, tensor in enumerate(operator.inputs):
            for root in roots.get(tensor, ()):  # an input may not be connected yet
                touched[root] = touched.get(root, False) or index in changed
        for root, writes in touched.items():
            if writes or not _is_view(operator):
                users.setdefault(root, []).append((operator, writes))
    return {r: u for r, u in users.items() if len(u) > 1 and any(w for _, w in u)}


def _pairs(
    touching: list[tuple[Operator, bool]],
) -> Iterator[tuple[Operator, Operator]]:
    """Yield pairs of operators of which at least one changes storage, in the order of
    their construction.

    Fragments are ordered among themselves.
    """
    for n, (first, writes) in enumerate(touching):
        for second, also in touching[n + 1 :]:
            if first.settings.fragment == second.settings.fragment and (writes or also):
                yield first, second


def _is_view(operator: Operator) -> bool:
    """Return whether the operator itself reads nothing, and only the readers of its
    result do.
    """
    return operator.record.put is not None


def _predecessors(graph: IrGraph) -> dict[Operator, int]:
    """Return for each operator the operators that always run before it, as bits."""
    bit = {operator: 1 << n for n, operator in enumerate(graph.operators)}
    before: dict[Operator, int] = {}
    for operator in graph.operators:
        found = 0
        for other in (*operator.after, *(t.producer for t in operator.inputs)):
            if other is not None and other in before:
                found |= before[other] | bit[other]
        before[operator] = found
    return before


def schedule(graph: IrGraph) -> list[Operator]:
    """Return the operators of a graph in an order to run them.

    The order respects data, `in_sequence` and changes to storage. If several operators
    could be next, those with small results come first.
    """
    waits = orderings(graph)
    size = {
        op: sum(prod(t.shape) * t.dtype.carrier.itemsize for t in op.outputs)
        for op in graph.operators
    }
    number = {op: n for n, op in enumerate(graph.operators)}
    left = {op: len(before) for op, before in waits.items()}
    after: dict[Operator, list[Operator]] = {}
    for op, before in waits.items():
        for each in before:
            after.setdefault(each, []).append(op)
    ready = [(size[op], number[op], op) for op in graph.operators if not left[op]]
    heapify(ready)
    found = []
    while ready:
        op = heappop(ready)[2]
        found.append(op)
        for each in after.get(op, ()):
            left[each] -= 1
            if not left[each]:
                heappush(ready, (size[each], number[each], each))
    return found


def orderings(
    graph: IrGraph, in_sequence: bool = True
) -> dict[Operator, set[Operator]]:
    """Return for each operator those that must run before it. in_sequence: include the
    program's own order, not only data and storage.
    """
    waits: dict[Operator, set[Operator]] = {
        op: {
            other
            for other in (
                *(op.after if in_sequence else ()),
                *(t.producer for t in op.inputs),
            )
            if other is not None
        }
        for op in graph.operators
    }
    for touching in _contested(graph).values():
        for first, second in _pairs(touching):
            waits[second].add(first)
    return waits


def location_of(tensor: IrTensor) -> OperatorSettings | None:
    """Return where the operator that makes `tensor` leaves it, otherwise where the
    first operator that reads it expects it. None if no operator uses it.
    """
    operator = tensor.producer
    if operator is not None:
        return _of_result(operator, operator.outputs.index(tensor))
    for reader in tensor.readers:
        found = _of_input(reader, reader.inputs.index(tensor))
        if found is not None:
            return found
    return None


def settings_beside(tensor: IrTensor) -> OperatorSettings:
    """Return the settings of an operator where `tensor` is."""
    return _only_location(location_of(tensor))


def backward_settings(operator: Operator) -> OperatorSettings:
    """Return the settings of a gradient of `operator`, which is where its first input
    is.
    """
    return _only_location(_of_input(operator, 0))


def _only_location(found: OperatorSettings | None) -> OperatorSettings:
    if found is None:
        return OperatorSettings()
    return OperatorSettings(ipu=found.ipu, tile_set=found.tile_set)


def _of_result(operator: Operator, index: int) -> OperatorSettings:
    own = operator.settings
    places: tuple[int, ...] = operator.attributes.get("ipus", ())
    if index < len(places):
        return replace(own, ipu=places[index])
    if "graphs" in operator.attributes:
        outputs = operator.called_graphs[0].outputs
        return location_of(outputs[index + (operator.type == "Loop")]) or own
    return own


def _of_input(operator: Operator, index: int) -> OperatorSettings | None:
    own = operator.settings
    places: tuple[int, ...] = operator.attributes.get("ipus", ())
    if index < len(places):
        return replace(own, ipu=places[index])
    if operator.type in _FROM:
        return replace(own, ipu=operator.attributes[_FROM[operator.type]])
    if operator.type in ("IoTileCopy", "IoTileCopyGrad"):
        return replace(own, tile_set="compute" if own.tile_set == "io" else "io")
    if "graphs" in operator.attributes:
        inner = _inner_input(operator, index)
        found = location_of(inner) if inner is not None else None
        # The call inside a loop is made without contexts: the loop has them.
        return found or (None if operator.graph.is_loop_body else own)
    return own


def _inner_input(operator: Operator, index: int) -> IrTensor | None:
    """Return the input of a called graph that this input feeds."""
    at = index + {"Loop": 2, "If": -1}.get(operator.type, 0)
    for graph in operator.called_graphs:
        if 0 <= at < len(graph.inputs):
            return graph.inputs[at]
        at -= len(graph.inputs)
    return None
