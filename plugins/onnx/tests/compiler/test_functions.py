"""Functions of a model are compiled as its own nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from engine import ModelRunner
from popgate_onnx.compiler import compile_model
from popgate_onnx.compiler.functions import inline_functions

CALLS = """<ir_version: 10, opset_import: ["": 20, "local": 1]>
g (int32[n] x, int32[n] z) => (int32[n] y) <int32[1] one = {1}> {
    w = local.outer (x, z)
    y = Mul (w, one)
}
<domain: "local", opset_import: ["": 20, "local": 1]>
outer (a, b) => (c) { c = local.inner (a, b) }
<domain: "local", opset_import: ["": VERSION]>
inner (a, b) => (c) { c = Div (a, b) }"""


def model(version: int = 20) -> Any:
    return onnx.parser.parse_model(CALLS.replace("VERSION", str(version)))


def test_a_division_in_a_function_ends_no_process(tmp_path: Path) -> None:
    report = compile_model(model(), target := tmp_path / "m.popef")
    assert report.batch.rows
    least = np.iinfo(np.int32).min
    x, z = np.array([least, 9], np.int32), np.array([-1, -2], np.int32)
    with ModelRunner(target) as runner:
        y = runner.execute({"x": x, "z": z})["y"]
    assert y.tolist() == [least, -4]


def test_what_is_kept() -> None:
    inline_functions(changed := model())
    assert [node.op_type for node in changed.graph.node] == ["Div", "Mul"]
    assert not changed.functions
    assert [tensor.name for tensor in changed.graph.initializer] == ["one"]
    inline_functions(odd := model(13))
    assert [function.name for function in odd.functions] == ["inner"]
    plain = model()
    del plain.functions[:]
    before = plain.SerializeToString()
    inline_functions(plain)
    assert plain.SerializeToString() == before
