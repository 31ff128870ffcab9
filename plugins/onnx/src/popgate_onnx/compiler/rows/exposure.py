"""Makes values inside nested graphs and functions visible outside.

The values in a body of `Loop` or `Scan` become results of its node, one for each step.
The values in a branch of `If` become results, which are empty if the branch is not
taken. Functions are inlined. The model computes the same as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from engine.errors import InvalidModel
from popgate_onnx.compiler.graphs import MAX_NESTING, graphs_of

_STEPS = frozenset({"Loop", "Scan"})


def has_inside(model: Any) -> bool:
    """Return whether there is anything to make visible."""
    nested = any(True for node in model.graph.node for _ in graphs_of(node))
    return nested or len(model.functions) > 0


def exposed(model: Any) -> Any:
    """Return a copy of `model`: every value in it is a result of a node of the main
    graph.
    """
    from onnx import inliner

    if len(model.functions):
        model = inliner.inline_local_functions(model)
    copy = type(model)()
    copy.CopyFrom(model)
    _open(copy.graph, count(), 0)
    return copy


def _open(graph: Any, numbers: Iterator[int], depth: int) -> None:
    if depth > MAX_NESTING:
        raise InvalidModel(f"graphs are nested more than {MAX_NESTING} deep")
    for node in graph.node:
        bodies = list(graphs_of(node))
        for body in bodies:
            _open(body, numbers, depth + 1)
        if node.op_type in _STEPS:
            _show_steps(node, bodies[0], numbers)
        elif node.op_type == "If":
            _show_branches(node, bodies, numbers)


def _show_steps(node: Any, body: Any, numbers: Iterator[int]) -> None:
    from onnx import helper

    names = list(_values(body))
    for name in names:
        seen = f"seen:{next(numbers)}"
        body.node.append(helper.make_node("Identity", [name], [seen]))
        body.output.add().name = seen
        node.output.append(f"{seen}:steps")
    for attribute in node.attribute:
        if attribute.name in ("scan_output_axes", "scan_output_directions"):
            attribute.ints.extend([0] * len(names))


def _show_branches(node: Any, branches: list[Any], numbers: Iterator[int]) -> None:
    from onnx import TensorProto, helper

    empty = helper.make_tensor("empty", TensorProto.DOUBLE, [0], [])
    for branch in branches:
        for name in list(_values(branch)):
            seen = f"seen:{next(numbers)}"
            for other in branches:
                # Cast to one type, because both branches must give the same types.
                made = helper.make_node("Constant", [], [seen], value=empty)
                if other is branch:
                    made = helper.make_node(
                        "Cast", [name], [seen], to=TensorProto.DOUBLE
                    )
                other.node.append(made)
                info = helper.make_tensor_value_info(seen, TensorProto.DOUBLE, None)
                other.output.append(info)
            node.output.append(f"{seen}:branch")


def _values(graph: Any) -> Iterator[str]:
    for node in graph.node:
        if not (node.op_type == "Constant" and not node.domain):
            yield from (name for name in node.output if name)
