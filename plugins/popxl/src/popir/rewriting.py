"""Changes to graphs that keep all values: sums as additions, merged exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from popir.aliases import orderings
from popir.ir import IrGraph, Operator
from popir.records import OpCall, Record, Spec, record_of, register

_REMOTE = frozenset({"RemoteLoad", "RemoteLoadInplace", "RemoteStore"})
_EXCHANGES = _REMOTE | {"HostLoad", "HostStore"}


def _infer_parts(call: OpCall) -> list[Spec]:
    parts: Sequence[Operator] = call["parts"]
    return [t.spec for part in parts for t in part.outputs]


register(Record("MultiExchange", _infer_parts))


def decompose_sums(graph: IrGraph) -> None:
    """Replace each Sum of more than two inputs by an Init and an Add for each input."""
    for operator in [op for op in graph.operators if op.type == "Sum"]:
        if len(operator.inputs) < 3:
            continue
        (result,) = operator.outputs
        at = graph.operators.index(operator)
        count = len(graph.operators)
        where = operator.settings
        spec = result.spec
        attributes = {"dtype": spec.dtype, "shape": spec.shape, "meta_shape": ()}
        (total,) = graph.add("Init", [], [None], attributes, where).outputs
        for tensor in operator.inputs:
            made = graph.add("Add", [total, tensor], [None], {}, where)
            (total,) = made.outputs
        # The last addition computes the result of the sum.
        del graph.tensors[total.id]
        made.outputs[0] = result
        result.producer = made
        new = graph.operators[count:]
        del graph.operators[count:]
        graph.remove(operator)
        graph.operators[at:at] = new
        _put_after(graph, [operator], made)


def merge_exchanges(graph: IrGraph, made: Sequence[Operator]) -> list[Operator]:
    """Merge loads and stores among `made` into one operator, as far as they do not wait
    for each other, or for what runs between them; return the remaining ones, with
    Inits.
    """
    merged: list[Operator] = []
    group: list[Operator] = []
    for operator in made:
        if operator.type not in _EXCHANGES:
            continue
        if _must_be_apart(graph, [*group, operator]):
            merged += _merged(graph, group)
            group = []
        group.append(operator)
    merged += _merged(graph, group)
    others = [op for op in made if op.type not in _EXCHANGES and op.type != "Init"]
    return [*others, *merged]


def _must_be_apart(graph: IrGraph, parts: Sequence[Operator]) -> bool:
    """Return whether one part needs another's result, or the program orders an operator
    between two.
    """
    inside = set(parts)
    needed = {op for part in parts for op in _behind(graph, part)}
    if needed & inside:
        return True
    waits = orderings(graph)
    todo, seen = [op for part in parts for op in waits[part] - inside], set[Operator]()
    while todo:
        operator = todo.pop()
        # What a part needs moves before all parts.
        if operator not in needed and waits[operator] & inside:
            return True
        seen.add(operator)
        todo += waits[operator] - inside - seen
    return False


def _behind(graph: IrGraph, operator: Operator) -> set[Operator]:
    """Return the operators that must run before it, directly or not, because of data
    and storage.
    """
    waits = orderings(graph, in_sequence=False)
    todo, seen = [operator], set[Operator]()
    while todo:
        for each in waits.get(todo.pop(), ()):
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return seen


def _merged(graph: IrGraph, parts: list[Operator]) -> list[Operator]:
    if len(parts) < 2:
        return parts
    first = parts[0]
    operator = Operator(
        next(graph.ir.operator_numbers),
        "MultiExchange",
        record_of("MultiExchange"),
        graph,
        [t for part in parts for t in part.inputs],
        [t for part in parts for t in part.outputs],
        {"parts": tuple(parts)},
        first.settings,
    )
    for tensor in operator.outputs:
        tensor.producer = operator
    for tensor in operator.inputs:
        tensor.readers = [operator if r in parts else r for r in tensor.readers]
    inside = set(parts)
    # Inits between the parts now come before all parts.
    needed = {op for part in parts for op in _behind(graph, part)}
    for op in needed:
        op.after = tuple(each for each in op.after if each not in inside)
    waits = orderings(graph)
    operator.after = tuple({a for part in parts for a in part.after} - inside)
    index = {op: n for n, op in enumerate(graph.operators)}
    index[operator] = index[first]
    before = {operator: {w for part in parts for w in waits[part]} - inside}
    for op in graph.operators:
        if op not in inside:
            before[op] = {operator if w in inside else w for w in waits[op]}
    graph.operators[:] = in_order(before, index)
    _put_after(graph, parts, operator)
    return [operator]


def in_order(
    before: dict[Operator, set[Operator]], index: dict[Operator, int]
) -> list[Operator]:
    """Return the operators in the order of `index`, as far as they do not wait for each
    other.
    """
    left = {op: len(waits) for op, waits in before.items()}
    behind: dict[Operator, list[Operator]] = {}
    for op, waits in before.items():
        for each in waits:
            behind.setdefault(each, []).append(op)
    ready = [(index[op], op.id, op) for op in before if not left[op]]
    heapify(ready)
    found = []
    while ready:
        op = heappop(ready)[2]
        found.append(op)
        for each in behind.get(op, ()):
            left[each] -= 1
            if not left[each]:
                heappush(ready, (index[each], each.id, each))
    assert len(found) == len(before), "exchanges that wait for each other"
    return found


def _put_after(graph: IrGraph, gone: Sequence[Operator], new: Operator) -> None:
    """Order operators after `new` that were ordered after `gone`."""
    for operator in graph.operators:
        if operator is not new and any(each in gone for each in operator.after):
            kept = [each for each in operator.after if each not in gone]
            operator.after = (*kept, new)
    graph.forget(gone, new)
