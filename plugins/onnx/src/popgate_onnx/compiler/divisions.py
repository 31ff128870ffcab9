"""Integer divisions that do not end the process of a device.

In ONNX Runtime the least INT32 or INT64 divided by -1 is a signal (SIGFPE), so one
request would end the device for all its models. Here it is the least integer, as in
NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from popgate_onnx.compiler.graphs import all_graphs
from popgate_onnx.compiler.replacing import NodeReplacement, replace_nodes

#: The version of ONNX's operators since which `Where` exists.
_SINCE: Final = 9
_PREFIX: Final = "popgate_division"


def guard_divisions(model: Any) -> None:
    """Guard each integer division of `model` whose divisor may be -1."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if max(versions, default=0) < _SINCE:
        return
    safe = frozenset(_without_minus_one(model.graph))
    wants = partial(_may_fault, safe=safe)
    types = frozenset(_types())
    replace_nodes(model, NodeReplacement(wants, types, _guarded, _PREFIX, typed=2))


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
