"""Frames of an STFT end no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine.errors import EngineError
from popgate_onnx.compiler import compile_model
from popgate_onnx.compiler.frames import guard_frames
from popgate_onnx.compiler.graphs import all_nodes
from tests.engine.onnx_models import Compiled

HEAD = '<ir_version: 10, opset_import: ["": 20]>\n'
LENGTH = "g (float[b,n,1] x, int64 f) => (float[b,m,k,2] y) {STEP y = STFT (x, s, , f)}"
INT32 = LENGTH.replace("int64", "int32")
WINDOW = (
    "g (float[b,n,1] x, float[f] f) => (float[b,m,k,2] y) {STEP y = STFT (x, s, f)}"
)
BRANCH = """g (float[b,n,1] x, int64 f) => (float[b,m,k,2] y) {
    yes = Constant <value = bool {1}> ()
    y = If (yes) <then_branch = g1 () => (float[b,m,k,2] a) {STEP a = STFT (x, s, , f)},
                  else_branch = g2 () => (float[b,m,k,2] c) {STEP c = STFT (x, s, , f)}>
}"""
SIGNAL = "g (float[b,n,1] x) => (float[b,m,k,2] y) {STEP y = STFT (x, s)}"
FIXED = """g (float[b,n,1] x) => (float[b,m,k,2] y)
    <int64 f = {4}> {STEP y = STFT (x, s, , f)}"""
ZERO = FIXED.replace("{4}", "{0}")
KEPT = """g (float[b,n,1] x) => (float[b,m,k,2] y)
    <float[4] w = {1,1,1,1}> {STEP y = STFT (x, s, w)}"""


def model(text: str) -> Any:
    kind = "int32" if "int32" in text else "int64"
    step = f" s = Constant <value = {kind} {{2}}> ()"
    return onnx.parser.parse_model(HEAD + text.replace("STEP", step))


def of_length(text: str, length: int) -> Any:
    if text is WINDOW:
        return np.ones(length, np.float32)
    return np.array(length, np.int32 if text is INT32 else np.int64)


@pytest.mark.parametrize("text", [LENGTH, INT32, WINDOW, BRANCH])
def test_a_frame_without_length_is_an_error(tmp_path: Path, text: str) -> None:
    compile_model(model(text), target := tmp_path / "m.popef")
    compiled = Compiled(target)
    x = np.arange(16, dtype=np.float32).reshape(1, 16, 1)
    with pytest.raises(EngineError, match=r"smaller than|must be equal"):
        compiled.run(x=x, f=of_length(text, 0))
    y = compiled.run(x=x, f=of_length(text, 4))["y"]
    frames = np.lib.stride_tricks.sliding_window_view(x[0, :, 0], 4)[::2]
    expected = np.fft.rfft(frames)
    assert np.allclose(y[0, ..., 0] + 1j * y[0, ..., 1], expected, atol=1e-4)


def test_a_signal_without_length_is_an_error(tmp_path: Path) -> None:
    compile_model(model(SIGNAL), target := tmp_path / "m.popef")
    compiled = Compiled(target)
    with pytest.raises(EngineError, match="smaller than the signal"):
        compiled.run(x=np.zeros((1, 0, 1), np.float32))
    y = compiled.run(x=np.ones((1, 8, 1), np.float32))["y"]
    assert y.shape == (1, 1, 5, 2)
    assert y[0, 0, 0].tolist() == [8, 0]


@pytest.mark.parametrize(("text", "guards"), [(FIXED, 0), (KEPT, 0), (ZERO, 1)])
def test_only_what_may_be_zero_is_guarded(text: str, guards: int) -> None:
    guard_frames(changed := model(text))
    assert [n.op_type for n in changed.graph.node].count("Where") == guards


def test_names_that_are_taken() -> None:
    taken = model(LENGTH.replace(" y = ", " popgate_frame_0_zero = Neg (x) y = "))
    guard_frames(taken)
    names = [name for node in all_nodes(taken.graph) for name in node.output]
    assert len(names) == len({*names})
    onnx.checker.check_model(taken)
