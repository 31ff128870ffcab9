"""How many rows may be in memory together."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from engine.config import ModelRunnerConfig
from engine.model.anchors import main_anchors
from engine.model.batch_plan import plan_batches
from popef_io import load_model
from popgate_onnx.compiler import CompileOptions, compile_model
from popgate_onnx.compiler.rows.batch_limit import rows_within
from tests.engine.onnx_models import INT64, X, Y, floats, node, onnx_model, value

WIDE = onnx_model(  # a row takes 1024 + 1024 elements in Relu, less elsewhere
    [
        node("MatMul", ["x", "w"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("ReduceMax", ["r", "axis"], ["m"]),
        node("Add", ["x", "m"], ["y"]),
    ],
    [X],
    [Y],
    {"w": floats(8, 1024), "axis": np.array([1])},
)
RELU = 2 * 1024 * 4


@pytest.mark.parametrize(
    ("budget", "rows"),
    [
        (1, 1),
        (RELU, 1),
        (2 * RELU - 1, 1),
        (2 * RELU, 2),
        (40 * RELU, 32),
        (1 << 40, 64),
    ],
)
def test_the_largest_node_decides(budget: int, rows: int) -> None:
    assert rows_within(WIDE, 64, budget) == rows


def test_what_is_not_known_counts_nothing() -> None:
    free = onnx_model(
        [node("Relu", ["x"], ["y"])],
        [value("x", INT64, ["N", "L", "M"])],
        [value("y", INT64, ["N", "L", "M"])],
    )
    assert rows_within(free, 64, 64 * 16) == 64
    assert rows_within(free, 64, 64 * 16 - 1) == 32
    no_op_of_ours = onnx_model([node("Frobnicate", ["x"], ["y"])], [X], [Y])
    assert rows_within(no_op_of_ours, 64) == 64


def test_the_file_says_it_and_the_configuration_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = partial(rows_within, budget=9 * RELU)
    monkeypatch.setattr("popgate_onnx.compiler.rows.batching.rows_within", tight)
    path = tmp_path / "m.popef"
    assert compile_model(WIDE, path).batch.most == 8
    model = load_model(path)
    anchors = main_anchors(model)
    assert plan_batches(model, anchors, ModelRunnerConfig()).max_units == 8
    wanted = ModelRunnerConfig(max_batch_size=32)
    assert plan_batches(model, anchors, wanted).max_units == 32
    assert compile_model(WIDE, path, CompileOptions(batch=4)).batch.most == 0
