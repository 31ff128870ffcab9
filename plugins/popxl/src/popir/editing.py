"""Changes that a program makes to its graphs operator by operator."""

from __future__ import annotations

from popir.errors import IrError
from popir.ir import IrGraph, IrTensor, Operator
from popir.rewriting import in_order


def disconnect(operator: Operator, index: int) -> None:
    """Remove an input. Another tensor can be connected in its place."""
    old = operator.inputs[index]
    operator.inputs[index] = operator.graph.unconnected(old.spec)
    if old not in operator.inputs:
        _forget_reader(old, operator)


def _forget_reader(tensor: IrTensor, operator: Operator) -> None:
    tensor.readers[:] = [each for each in tensor.readers if each is not operator]


def disconnect_output(operator: Operator, index: int) -> None:
    """Remove a result. The tensor stays in its graph without a producer."""
    old = operator.outputs[index]
    if old.producer is operator:
        old.producer = None
    operator.outputs[index] = operator.graph.unconnected(old.spec)


def connect_output(operator: Operator, index: int, id_: str) -> None:
    """Make the tensor with that id a result; a new one if the graph has none."""
    graph = operator.graph
    if not 0 <= index < len(operator.outputs):
        raise IrError(f"{operator} has no output {index}")
    spec = operator.outputs[index].spec
    tensor = graph.tensors.get(id_)
    if tensor is None:
        name = id_.removeprefix(f"{graph.id}/") if graph.id else id_
        tensor = graph.new_tensor(spec, "result", name)
    elif tensor.producer is not None or tensor.kind != "result":
        raise IrError(f"{id_!r} cannot become a result of {operator}: it has a source")
    elif tensor.spec != spec:
        raise IrError(f"{tensor} does not fit result {index} of {operator}: {spec}")
    operator.outputs[index] = tensor
    tensor.producer = operator


def copy_into(graph: IrGraph, operator: Operator) -> Operator:
    """Make a copy of an operator in `graph`, without connections."""
    graph.ir.check_open()
    made = Operator(
        next(graph.ir.operator_numbers),
        operator.type,
        operator.record,
        graph,
        [graph.unconnected(t.spec) for t in operator.inputs],
        [graph.unconnected(t.spec) for t in operator.outputs],
        dict(operator.attributes),
        operator.settings,
        operator.name,
        modified=set(operator.modified),
    )
    for called in made.called_graphs:
        called.callers[made] = None
    graph.operators.append(made)
    return made


def erase(operator: Operator) -> None:
    """Remove an operator; its results stay in the graph without a producer."""
    operator.graph.ir.check_open()
    for index in range(len(operator.outputs)):
        disconnect_output(operator, index)
    operator.graph.remove(operator)
    for other in operator.graph.operators:
        if operator in other.after:
            kept = (each for each in other.after if each is not operator)
            other.after = (*kept, *operator.after)
    operator.graph.forget([operator], None)


def replace(old: IrTensor, new: IrTensor) -> None:
    """Replace `old` by `new` for all readers."""
    for reader in list(dict.fromkeys(old.readers)):
        for index, tensor in enumerate(reader.inputs):
            if tensor is old:
                reader.graph.connect(reader, index, new)
    outputs = old.graph.outputs
    outputs[:] = [new if each is old else each for each in outputs]


def run_before(first: Operator, second: Operator) -> None:
    """Order `first` before `second`, as `in_sequence` does. Raises IrError for a
    circle.
    """
    if first.graph is not second.graph:
        raise IrError(f"{first} and {second} are in different graphs")
    if first is second or second in _all_before(first):
        raise IrError(f"{second} runs before {first} already")
    if first not in second.after:
        second.after = (*second.after, first)
    operators = first.graph.operators
    waits = {op: _just_before(op).intersection(operators) for op in operators}
    operators[:] = in_order(waits, {op: n for n, op in enumerate(operators)})


def _just_before(operator: Operator) -> set[Operator]:
    """Return the operators that an operator waits for, by data or by the program's
    order.
    """
    sources = (t.producer for t in operator.inputs)
    return {*operator.after, *(each for each in sources if each is not None)}


def _all_before(operator: Operator) -> set[Operator]:
    todo, found = [operator], set[Operator]()
    while todo:
        new = _just_before(todo.pop()) - found
        found |= new
        todo += new
    return found


def remove_isolated(graph: IrGraph) -> list[IrTensor]:
    """Remove tensors that no operator or graph computes, reads or takes; return
    them.
    """
    kept = {*graph.outputs, *graph.inputs}
    kept |= {t for op in graph.operators for t in (*op.inputs, *op.outputs)}
    gone = [
        each
        for each in graph.tensors.values()
        if each not in kept and each.kind != "stream"
    ]
    for tensor in gone:
        del graph.tensors[tensor.id]
    return gone
