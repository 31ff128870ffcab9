"""Integer divisions that do not end the process of a device.

In ONNX Runtime the least INT32 or INT64 divided by -1 is a signal (SIGFPE), so one
request would end the device for all its models. Here it is the least integer, as in
NumPy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from popgate_onnx.compiler.graphs import all_graphs, all_nodes, graphs_of

#: The version of ONNX's operators since which `Where` exists.
_SINCE: Final = 9
_PREFIX: Final = "popgate_division"

Types: TypeAlias = Mapping[str, int]
"""The element types of values, by name."""


def guard_divisions(model: Any) -> None:
    """Guard each integer division of `model` whose divisor may be -1."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if max(versions, default=0) < _SINCE:
        return
    safe = frozenset(_without_minus_one(model.graph))
    if any(_may_fault(node, safe) for node in all_nodes(model.graph)):
        _guard(model.graph, _with_types(model), {}, safe, _names(model.graph))


def _may_fault(node: Any, safe: frozenset[str]) -> bool:
    is_division = node.op_type == "Div" and node.domain in ("", "ai.onnx")
    return is_division and len(node.input) == 2 and node.input[1] not in safe


def _without_minus_one(graph: Any) -> Iterator[str]:
    """Yield the names of constants that are floating-point or have no -1."""
    found: dict[str, bool] = {}
    for inner in all_graphs(graph):
        constants = [(tensor.name, tensor) for tensor in inner.initializer]
        others = [value.name for value in inner.input]
        for node in inner.node:
            if node.op_type == "Constant" and len(node.attribute) == 1:
                constants.append((node.output[0], node.attribute[0].t))
            else:
                others += node.output
        for name, tensor in constants:
            found[name] = found.get(name, True) and _has_no_minus_one(tensor)
        found |= dict.fromkeys(others, False)
    yield from (name for name, is_safe in found.items() if is_safe)


def _has_no_minus_one(tensor: Any) -> bool:
    from onnx import numpy_helper

    if tensor.data_type not in _types():
        return bool(tensor.data_type)
    return not tensor.external_data and bool(
        (numpy_helper.to_array(tensor) != -1).all()
    )


def _types() -> tuple[int, int]:
    from onnx import TensorProto

    return TensorProto.INT32, TensorProto.INT64


def _with_types(model: Any) -> Any:
    """Return the graph with the types of its values, and without its weights."""
    import onnx
    from onnx import helper

    light = type(model)(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = "types"
    graph.node.extend(model.graph.node)
    graph.output.extend(model.graph.output)
    given = {value.name: value for value in model.graph.input}
    for tensor in model.graph.initializer:
        given[tensor.name] = helper.make_tensor_value_info(
            tensor.name, tensor.data_type, tensor.dims
        )
    graph.input.extend(given.values())
    try:
        return onnx.shape_inference.infer_shapes(light).graph
    except Exception:  # onnx raises many kinds of errors
        return graph


def _names(graph: Any) -> Iterator[str]:
    """Yield prefixes of names that the model does not use."""
    used = {name for node in all_nodes(graph) for name in node.output}
    for inner in all_graphs(graph):
        used.update(value.name for value in (*inner.input, *inner.initializer))
    for number in itertools.count():
        if not any(name.startswith(f"{_PREFIX}_{number}_") for name in used):
            yield f"{_PREFIX}_{number}_"


def _guard(
    graph: Any, inferred: Any, outer: Types, safe: frozenset[str], names: Iterator[str]
) -> None:
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    types = {
        **outer,
        **{value.name: value.type.tensor_type.elem_type for value in values},
        **{tensor.name: tensor.data_type for tensor in inferred.initializer},
    }
    nodes = []
    for node, same in zip(graph.node, inferred.node, strict=True):
        for inner, inner_same in zip(graphs_of(node), graphs_of(same), strict=True):
            _guard(inner, inner_same, types, safe, names)
        if _may_fault(node, safe):
            known = {types.get(name, 0) for name in (*node.input, *node.output)}
            kind = known.intersection(_types())
            if kind:
                nodes += _guarded(node, kind.pop(), next(names))
                continue
        nodes.append(node)
    if len(nodes) > len(graph.node):
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _guarded(node: Any, kind: int, prefix: str) -> list[Any]:
    """Return nodes that divide by 1 where the divisor is -1, and negate there."""
    from onnx import helper, numpy_helper

    dividend, divisor = node.input
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    minus, one, is_minus, negated, by, quotient = (
        prefix + name
        for name in ("minus", "one", "is_minus", "negated", "divisor", "quotient")
    )
    make = helper.make_node
    constants = [
        make("Constant", [], [name], value=numpy_helper.from_array(np.array(n, dtype)))
        for name, n in ((minus, -1), (one, 1))
    ]
    return [
        *constants,
        make("Equal", [divisor, minus], [is_minus]),
        make("Where", [is_minus, one, divisor], [by]),
        make("Div", [dividend, by], [quotient], name=node.name),
        make("Neg", [dividend], [negated]),
        make("Where", [is_minus, negated, quotient], [node.output[0]]),
    ]
