"""Prove, without running a model, that it keeps rows apart and has one number of rows.

The proof goes through the graph node by node. Each operator has a rule. The rule
returns the axis of the rows in the results, and the numbers of rows that must be equal
for the operator to run. If a node has no rule, or its rule gives no answer, there is no
proof. `popgate_onnx.compiler.rows.row_proof` says how the result of `unproven` is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from popgate_onnx.compiler import GraphTensor, Interface, label
from popgate_row_proof.call import OperatorCall, Rule
from popgate_row_proof.ml_rules import LEARNING
from popgate_row_proof.rules import CALCULATING
from popgate_row_proof.shape_rules import MOVING, PASS_SIZES_ON, SIZES_OF_RESULTS
from popgate_row_proof.values import (
    AbstractValue,
    RowCounts,
    Rows,
    Size,
    Unproven,
    unknown,
)

MAX_ITEMS = 64
"""The most elements of an examined constant. Larger constants are not sizes or axes."""
_RULES: Mapping[tuple[str, str], Rule] = {
    **{("", name): rule for name, rule in {**CALCULATING, **MOVING}.items()},
    **LEARNING,
}


def unproven(model: Any, interface: Interface) -> str | None:
    """Return why there is no proof that rows stay apart and all inputs have equally
    many rows.

    The result is a clause; None if there is a proof. `model` may lack the data of
    weights. All inputs must have a free first dimension.
    """
    counts = RowCounts(len(interface.inputs))
    inputs = _inputs(interface.inputs, counts)
    try:
        values = traced(model, inputs, (t.name for t in interface.outputs), counts)
    except Unproven as error:
        return str(error)
    for output in interface.outputs:
        if not _has_rows_first(values.get(output.name)):
            return f"output {output.name!r} may not have one row for each input row"
    counts.settle()
    return _unequal(interface.inputs, counts)


def traced(
    model: Any,
    inputs: Mapping[str, AbstractValue],
    outputs: Iterable[str],
    counts: RowCounts,
) -> dict[str, AbstractValue]:
    """Return the known facts of every value that `outputs` depend on, given the inputs.

    Raises Unproven, naming the node, if a node may combine different rows.
    """
    graph = _inlined(model).graph
    values = {tensor.name: _constant(tensor) for tensor in graph.initializer}
    values.update(inputs)
    opsets = {_domain(o.domain): int(o.version) for o in model.opset_import}
    for node in _live(graph, outputs):
        try:
            _visit(node, values, opsets, counts)
        except Unproven as error:
            raise Unproven(f"{label(node)} {error}") from None
    return values


def _unequal(inputs: Iterable[GraphTensor], counts: RowCounts) -> str | None:
    names = [tensor.name for tensor in inputs]
    for number, name in enumerate(names):
        if not counts.are_equal(0, number):
            return (
                f"the model may also run if {names[0]!r} and {name!r} have different "
                "numbers of rows"
            )
    return None


def _inlined(model: Any) -> Any:
    if not len(model.functions):
        return model
    from onnx import inliner

    return inliner.inline_local_functions(model)


def _inputs(
    inputs: Iterable[GraphTensor], counts: RowCounts
) -> dict[str, AbstractValue]:
    """Return each input with its own rows. If the first dimensions of inputs share a
    name, their numbers of rows are equal.
    """
    values: dict[str, AbstractValue] = {}
    groups: dict[str, int] = {}
    for number, tensor in enumerate(inputs):
        first, *rest = tensor.shape or (None,)
        if isinstance(first, str):
            counts.must_be_equal((groups.setdefault(first, number), number))
        # A name that two dimensions share proves nothing, because requests need not
        # respect it.
        sizes: list[Size] = [d if isinstance(d, int) else unknown() for d in rest]
        values[tensor.name] = AbstractValue((Rows(number), *sizes))
    return values


def _constant(tensor: Any) -> AbstractValue:
    """Return the value of a tensor, with its elements if they may be sizes or axes."""
    from onnx import TensorProto, numpy_helper

    shape = tuple(int(d) for d in tensor.dims)
    whole = tensor.data_type in (TensorProto.INT32, TensorProto.INT64)
    if not whole or prod(shape) > MAX_ITEMS or tensor.data_location == tensor.EXTERNAL:
        return AbstractValue(shape)
    items = numpy_helper.to_array(tensor).reshape(-1).tolist()
    return AbstractValue(shape, tuple(int(item) for item in items))


def _live(graph: Any, outputs: Iterable[str]) -> list[Any]:
    """Return the nodes whose results are used. Other nodes may never run, so they prove
    nothing.
    """
    wanted = set(outputs)
    nodes = []
    for node in reversed(graph.node):
        if wanted & set(node.output):
            nodes.append(node)
            wanted.update(node.input)
    return nodes[::-1]


def _visit(
    node: Any,
    values: dict[str, AbstractValue],
    opsets: Mapping[str, int],
    counts: RowCounts,
) -> None:
    """Add the known facts about the results of `node`."""
    domain, kind = _domain(node.domain), node.op_type
    if kind == "Constant" and not domain:
        values[node.output[0]] = _constant_node(node)
        return
    rule = _RULES.get((domain, kind))
    if rule is None:
        raise Unproven("is not known to keep rows apart")
    if missing := next((n for n in node.input if n and n not in values), None):
        raise Unproven(f"reads {missing!r}, which is unknown")
    given = tuple(values[name] if name else None for name in node.input)
    results = list(rule(OperatorCall(node, given, opsets.get(domain, 1), counts)))
    for index, value in enumerate(given):
        if value is not None and value.counts_rows:
            _check_counts(kind, index, results)
    for name, value in zip(node.output, results, strict=False):
        if sum(isinstance(size, Rows) for size in value.shape) > 1:
            raise Unproven("combines each row with every other")
        values[name] = value


def _check_counts(kind: str, index: int, results: Iterable[AbstractValue]) -> None:
    """Refuse to use the number of rows for anything but a size."""
    if (kind, index) in SIZES_OF_RESULTS or kind == "Shape":
        return
    known = all(result.items is not None for result in results)
    if kind not in PASS_SIZES_ON or not known:
        raise Unproven("depends on the number of rows")


def _constant_node(node: Any) -> AbstractValue:
    (attribute,) = node.attribute
    match attribute.name:
        case "value":
            return _constant(attribute.t)
        case "value_int":
            return AbstractValue((), (int(attribute.i),))
        case "value_ints":
            items = tuple(int(i) for i in attribute.ints)
            return AbstractValue((len(items),), items)
        case "value_float" | "value_string":
            return AbstractValue(())
        case "value_floats" | "value_strings":
            return AbstractValue((len(attribute.floats) or len(attribute.strings),))
    raise Unproven(f"has an unknown attribute {attribute.name!r}")


def _has_rows_first(value: AbstractValue | None) -> bool:
    first = value.shape[0] if value is not None and value.shape else None
    return isinstance(first, Rows) and first.each == 1


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
