"""Integer divisions end no process, and give what NumPy gives."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from popgate_onnx.compiler import compile_model
from popgate_onnx.compiler.divisions import guard_divisions
from popgate_onnx.compiler.graphs import all_nodes
from tests.engine.onnx_models import Array, Compiled

HEAD = '<ir_version: 10, opset_import: ["": {}]>\n'
PLAIN = "g (TYPE[n] x, TYPE[n] z) => (TYPE[n] y) { y = Div (x, z) }"
ROWS = "g (TYPE[n] x, TYPE[m, n] z) => (TYPE[m, n] y) { d = Neg (z) y = Div (x, d) }"
BRANCH = """g (TYPE[n] x, TYPE[n] z) => (TYPE[n] y) {
    size = Size (x)
    zero = Constant <value = int64 {0}> ()
    some = Greater (size, zero)
    y = If (some) <then_branch = g1 () => (TYPE[n] a) { a = Div (x, z) },
                   else_branch = g2 () => (TYPE[n] b) { b = Identity (x) }>
}"""
CONSTANT = """g (TYPE[n] x, TYPE[n] z) => (TYPE[n] y)
    <TYPE[1] c = {-1}> { q = Div (x, c) y = Div (q, z) }"""
SAFE = """g (TYPE[n] x) => (TYPE[n] y)
    <TYPE[1] c = {3}> {
    d = Constant <value = TYPE {7}> ()
    q = Div (x, c)
    y = Div (q, d)
}"""
FLOATS = "g (float[n] x, float[n] z) => (float[n] y) { d = Abs (z) y = Div (x, d) }"


def model(text: str, kind: str = "int32", opset: int = 20) -> Any:
    return onnx.parser.parse_model(HEAD.format(opset) + text.replace("TYPE", kind))


@pytest.mark.parametrize("text", [PLAIN, ROWS, BRANCH, CONSTANT])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_the_least_integer_divided_by_minus_one(
    tmp_path: Path, text: str, kind: str
) -> None:
    dtype = np.dtype(kind)
    least = np.iinfo(dtype).min
    compile_model(model(text, kind), target := tmp_path / "m.popef")
    compiled = Compiled(target)
    x = np.array([least, least, 7, -7, -7, 0], dtype)
    z = np.array([-1, 1, -1, 2, -3, -1], dtype)
    negated = -x[2:] if text is CONSTANT else x[2:]
    expected = np.trunc(negated / z[2:]).astype(dtype)
    if text is ROWS:
        z = np.stack([-z, -z])
    y: Array = compiled.run(x=x, z=z)["y"]
    if text is ROWS:
        assert (y[0] == y[1]).all()
        y = y[0]
    assert y[2:].tolist() == expected.tolist()
    assert y[:2].tolist() == [least, least]


@pytest.mark.parametrize(
    ("text", "opset"), [(SAFE, 20), (FLOATS, 20), (PLAIN, 8), (PLAIN, 0)]
)
def test_what_is_left_as_it_is(text: str, opset: int) -> None:
    before = model(text, opset=opset or 20)
    if not opset:
        del before.opset_import[:]
    after = type(before)()
    after.CopyFrom(before)
    guard_divisions(after)
    assert after == before


def test_names_that_are_taken(tmp_path: Path) -> None:
    text = PLAIN.replace("y = Div (x, z)", "popgate_division_0_one = Div (x, z)")
    taken = model(text.replace("[n] y)", "[n] popgate_division_0_one)"))
    guard_divisions(taken)
    names = [name for node in all_nodes(taken.graph) for name in node.output]
    assert len(names) == len({*names}) == 7
    onnx.checker.check_model(taken)


def test_a_model_whose_types_are_not_known() -> None:
    odd = model("g (int32[n] x, int32[n] z) => (int32[n] y) { y = Div (x, z) }")
    odd.graph.node.add(op_type="Nothing", domain="", input=["x"], output=["w"])
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        onnx.shape_inference.infer_shapes(odd)
    guard_divisions(odd)
    assert [node.op_type for node in odd.graph.node].count("Where") == 2
