"""Sums of 64-bit integers that keep all digits.

ONNX Runtime adds INT64 values as doubles: beyond 2**53 digits are lost, so the sum of
9007199254740993 and 1 over an axis may be 9007199254740992. Here the upper and the
lower 32 bits are added apart, which is exact for up to 2**21 values a sum. Larger
results wrap around, as in NumPy; ONNX Runtime's were the largest integer. Means are
left alone: their sum must not wrap around.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from popgate_onnx.compiler.replacing import NodeReplacement, replace_nodes

#: The version of ONNX's operators since which `ReduceSum` has the axes as input.
_SINCE: Final = 13
_SUMS: Final = ("ReduceSum", "ReduceSumSquare", "ReduceL1")
_HALF: Final = 1 << 32


def make_sums_exact(model: Any) -> None:
    """Replace the sums of INT64 values in `model`."""
    from onnx import TensorProto

    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if max(versions, default=0) >= _SINCE:
        types = frozenset((TensorProto.INT64,))
        replace_nodes(model, NodeReplacement(_is_sum, types, _exact, "popgate_sum"))


def _is_sum(node: Any) -> bool:
    return node.op_type in _SUMS and node.domain in ("", "ai.onnx")


def _exact(node: Any, _: int, prefix: str) -> list[Any]:
    from onnx import helper, numpy_helper

    nodes: list[Any] = []

    def add(kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        name = to or f"{prefix}{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def integer(value: Any) -> str:
        return add("Constant", value=numpy_helper.from_array(np.array(value, np.int64)))

    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    axes = list(node.input[1:])
    if "axes" in given:  # operators before version 18
        axes = [integer(given.pop("axes"))]

    def total(value: str) -> str:
        """Return the sum of `value` over the axes of `node`."""
        return add("ReduceSum", value, *axes, **given)

    value, result = node.input[0], node.output[0]
    if node.op_type == "ReduceSumSquare":
        value = add("Mul", value, value)
    elif node.op_type == "ReduceL1":
        value = add("Abs", value)
    half = integer(_HALF)
    low = add("Mod", value, half)
    high = add("Div", add("Sub", value, low), half)
    upper, lower = add("Mul", total(high), half), total(low)
    add("Add", upper, lower, to=result)
    return nodes
