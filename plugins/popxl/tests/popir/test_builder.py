"""The table of kernels is that of ONNX Runtime, which had fewer before 1.30."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from popir.builder import KERNELS, widened
from popir.lowering.assembly import IR_VERSION, ONNX_TYPES, OPSET

TYPES = [name for name in ONNX_TYPES if name != "bool"]
VERSION = tuple(map(int, ort.__version__.split(".")[:2]))
pytestmark = pytest.mark.skipif(VERSION < (1, 30), reason="has fewer kernels")


def runs(operator: str, dtype: str) -> bool:
    """Whether ONNX Runtime has a kernel: it can load a graph of that one node."""
    number = ONNX_TYPES[dtype]
    attributes: dict[str, Any] = {}
    inputs = [("x", number, [2, 2])]
    constants = []
    outputs = [("y", number)]
    if operator in ("Pow", "MatMul", "Max", "Min"):
        inputs.append(("b", number, [2, 2]))
    elif operator in ("CumSum", "TopK"):
        constants.append(
            helper.make_tensor("k", 7, [] if operator == "CumSum" else [1], [1])
        )
        if operator == "TopK":
            outputs.append(("i", 7))
    elif operator in ("ArgMax", "ArgMin"):
        outputs = [("y", 7)]
    elif operator == "Where":
        inputs = [("c", 9, [2, 2]), *inputs, ("b", number, [2, 2])]
    node = helper.make_node(
        operator,
        [name for name, *_ in inputs] + [c.name for c in constants],
        [name for name, _ in outputs],
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs],
        constants,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(model.SerializeToString(), options)
    except Exception:  # of several kinds: no such type, no such kernel
        return False
    return True


#: Those whose single node needs shapes that others do not.
SIMPLE = sorted(
    KERNELS.keys()
    - {"Conv", "ConvTranspose", "AveragePool", "MaxPool", "Resize", "RoiAlign"}
    - {"BatchNormalization"}
)


@pytest.mark.parametrize("operator", SIMPLE)
def test_what_the_table_promises_is_there(operator: str) -> None:
    for dtype in sorted(KERNELS[operator]):
        if dtype != "bool":
            assert runs(operator, dtype), dtype


@pytest.mark.parametrize("operator", SIMPLE)
def test_what_is_widened_is_widened_to_what_is_there(operator: str) -> None:
    for dtype in TYPES:
        wide = widened(operator, np.dtype(dtype))
        assert runs(operator, wide.name), (dtype, wide)


def test_what_has_a_kernel_is_left_alone() -> None:
    assert widened("Add", np.dtype(np.uint16)) == np.uint16
    assert widened("Neg", np.dtype(np.uint32)) == np.int64
    assert widened("MatMul", np.dtype(np.int8)) == np.int32
