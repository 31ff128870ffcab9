"""Sums of 64-bit integers keep all digits, and wrap around as in NumPy.

Covers: plugins/onnx/src/popgate_onnx/compiler/replacing.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from popgate_onnx.compiler import compile_model
from popgate_onnx.compiler.sums import make_sums_exact
from tests.engine.onnx_models import Array, Compiled

HEAD = '<ir_version: 10, opset_import: ["": {}]>\n'
INPUT = """g (int64[b, n, 3] x) => (int64[b, m, 3] y)
    <int64[1] axes = {1}> { y = OP (x, axes) }"""
ATTRIBUTE = "g (int64[b, n, 3] x) => (int64[b, m, 3] y) { y = OP <axes = [1]> (x) }"
ALL = "g (int64[b, n, 3] x) => (int64 y) { y = OP <keepdims = 0> (x) }"
BRANCH = """g (int64[b, n, 3] x) => (int64[b, m, 3] y) <int64[1] axes = {1}> {
    yes = Constant <value = bool {1}> ()
    y = If (yes) <then_branch = g1 () => (int64[b, m, 3] a) { a = OP (x, axes) },
                  else_branch = g2 () => (int64[b, m, 3] c) { c = OP (x, axes) }>
}"""
LARGE = np.iinfo(np.int64)


def values() -> Array:
    given = np.random.default_rng(0).integers(LARGE.min, LARGE.max, (4, 50, 3))
    given[0] = 2**53 + 1
    given[1] = LARGE.max
    given[2, :, 0] = np.arange(50) - 7
    return given


def expected(kind: str, x: Array, axis: int | None = 1) -> Array:
    if kind == "ReduceSumSquare":
        x = x * x
    elif kind == "ReduceL1":
        x = np.abs(x)
    return np.asarray(x.sum(axis, keepdims=axis is not None))


def model(text: str, kind: str, opset: int = 20) -> Any:
    return onnx.parser.parse_model(HEAD.format(opset) + text.replace("OP", kind))


@pytest.mark.parametrize(
    ("text", "opset", "kind"),
    [
        (INPUT, 20, "ReduceSum"),
        (INPUT, 13, "ReduceSum"),
        (ALL, 20, "ReduceSum"),
        (BRANCH, 20, "ReduceSum"),
        (INPUT, 20, "ReduceSumSquare"),
        (ATTRIBUTE, 17, "ReduceSumSquare"),
        (INPUT, 18, "ReduceL1"),
        (ATTRIBUTE, 13, "ReduceL1"),
    ],
)
def test_sums_are_numpys(tmp_path: Path, text: str, opset: int, kind: str) -> None:
    report = compile_model(model(text, kind, opset), target := tmp_path / "m.popef")
    assert bool(report.batch.rows) is (text is not ALL), report.batch
    x = values()
    y = Compiled(target).run(x=x)["y"]
    np.testing.assert_array_equal(y, expected(kind, x, None if text is ALL else 1))


@pytest.mark.parametrize(
    ("text", "opset"),
    [(INPUT.replace("int64[b", "float[b"), 20), (ATTRIBUTE, 11), (INPUT, 0)],
)
def test_what_is_left_as_it_is(text: str, opset: int) -> None:
    before = model(text, "ReduceSum", opset or 20)
    if not opset:
        del before.opset_import[:]
    after = type(before).FromString(before.SerializeToString())
    make_sums_exact(after)
    assert after == before
