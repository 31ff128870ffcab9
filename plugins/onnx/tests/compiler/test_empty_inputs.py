"""Inputs without elements end no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine import ModelRunner
from engine.errors import EngineError
from popgate_onnx.compiler import compile_model
from popgate_onnx.compiler.empty_inputs import guard_empty_inputs
from popgate_onnx.compiler.graphs import all_nodes

HEAD = '<ir_version: 10, opset_import: ["": 20]>\n'
LAYER = """g (float[b,s,2] x) => (float[s,d,b,3] y) {
    t = Transpose <perm = [1, 0, 2]> (x)
    w = ConstantOfShape (ws)
    r = ConstantOfShape (rs)
    y = OP <hidden_size = 3> (t, w, r)
}"""
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}


def model(kind: str) -> Any:
    rows = 3 * GATES[kind]
    sizes = f"<int64[3] ws = {{1, {rows}, 2}}, int64[3] rs = {{1, {rows}, 3}}>"
    text = LAYER.replace("OP", kind).replace("y) {", f"y) {sizes} {{")
    return onnx.parser.parse_model(HEAD + text)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_no_rows_are_an_error_and_the_device_lives(tmp_path: Path, kind: str) -> None:
    compile_model(model(kind), target := tmp_path / "m.popef")
    with ModelRunner(target) as runner:
        with pytest.raises(EngineError, match=f"without elements of {kind} node"):
            runner.execute({"x": np.zeros((0, 4, 2), np.float32)})
        without_steps = {"x": np.zeros((5, 0, 2), np.float32)}
        if kind == "GRU":
            with pytest.raises(EngineError, match="cannot be reshaped"):
                runner.execute(without_steps)
        else:
            assert runner.execute(without_steps)["y"].shape == (0, 1, 5, 3)
        y = runner.execute({"x": np.ones((5, 4, 2), np.float32)})["y"]
        assert y.shape == (4, 1, 5, 3)


TRANSPOSED = """g (float[b,1,d,h,w] x) => (float[b,1,i,j,k] y)
    <float[1,1,2,2,2] c = {1,1,1,1,1,1,1,1}> {
    y = ConvTranspose <strides = [2, 2, 2]> (x, c)
}"""
FOUR = """g (float[b,1,d,h,w,1] x) => (float[b,1,i,j,k,1] y)
    <float[1,1,1,1,1,1] c = {1}> { y = Conv <kernel_shape = [1, 1, 1, 1]> (x, c) }"""
DISTINCT = "g (float[b,n] x) => (float[m,n] y) { y = Unique <axis = 0> (x) }"


@pytest.mark.parametrize(
    ("text", "empty", "full"),
    [
        (TRANSPOSED, (1, 1, 2, 0, 2), (1, 1, 2, 2, 2)),
        (FOUR, (1, 1, 0, 2, 2, 1), (1, 1, 2, 2, 2, 1)),
        (DISTINCT, (2, 0), (2, 3)),
    ],
    ids=["ConvTranspose", "Conv", "Unique"],
)
def test_sizes_of_0_are_an_error_and_the_device_lives(
    tmp_path: Path, text: str, empty: tuple[int, ...], full: tuple[int, ...]
) -> None:
    compile_model(onnx.parser.parse_model(HEAD + text), target := tmp_path / "m.popef")
    with ModelRunner(target) as runner:
        with pytest.raises(EngineError, match="input without elements of"):
            runner.execute({"x": np.zeros(empty, np.float32)})
        y = runner.execute({"x": np.ones(full, np.float32)})["y"]
        assert (y == 1).all()
        assert y.shape == ((1, 3) if text is DISTINCT else y.shape)
        if text is TRANSPOSED:
            assert y.shape == (1, 1, 4, 4, 4)
            none = runner.execute({"x": np.ones((0, 1, 2, 2, 2), np.float32)})
            assert none["y"].shape == (0, 1, 4, 4, 4)


def test_convolutions_of_two_dimensions_are_left() -> None:
    text = (
        "g (float[b,1,h,w] x, float[1,1,k,k] c) => (float[b,1,i,j] y) {y = OP (x, c)}"
    )
    for kind in ("Conv", "ConvTranspose"):
        kept = onnx.parser.parse_model(HEAD + text.replace("OP", kind))
        guard_empty_inputs(kept)
        assert len(kept.graph.node) == 1


@pytest.mark.parametrize(("kind", "opset"), [("RNN", 20), ("GRU", 3)])
def test_what_is_left_as_it_is(kind: str, opset: int) -> None:
    kept = model(kind)
    kept.opset_import[0].version = opset
    before = kept.SerializeToString()
    guard_empty_inputs(kept)
    assert kept.SerializeToString() == before


def test_names_that_are_taken() -> None:
    twice = model("GRU")
    guard_empty_inputs(twice)
    guard_empty_inputs(twice)
    names = [name for node in all_nodes(twice.graph) for name in node.output]
    assert len(names) == len({*names}) == 8
    onnx.checker.check_model(twice)
