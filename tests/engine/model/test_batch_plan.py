"""What a run takes, by model and configuration; refusals name what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import InvalidConfig, InvalidInput, InvalidModel, ModelRunnerConfig, Tensor
from engine.model.anchors import OPTION_MAX_BATCH, main_anchors
from engine.model.batch_plan import BatchPlan, plan_batches
from engine.model.interface import ModelInterface
from engine.model.model_file import open_model
from engine.transport.channel import MAX_SLOTS, ChannelLayout
from popef_io import DataType, Option
from tests.engine import models
from tests.engine.fused import write_fused


def plan_of(path: Path, **options: Any) -> BatchPlan:
    model = open_model(path)
    return plan_batches(model, main_anchors(model), ModelRunnerConfig(**options))


@pytest.mark.parametrize(
    ("iterations", "options"),
    [
        (1 << 20, {}),
        (
            1,
            {
                "batching_dim": 0,
                "max_batch_size": 2048,
                "ring_buffer_size_multiplier": 1024,
            },
        ),
    ],
)
def test_a_channel_has_no_more_slots_than_a_device_allows(
    tmp_path: Path, iterations: int, options: dict[str, Any]
) -> None:
    model = open_model(
        models.regular(tmp_path / "m.popef", (3, 4), iterations=iterations)
    )
    config = ModelRunnerConfig(**options)
    layout = ModelInterface("m", model, config).layout(config)
    assert layout.slots == MAX_SLOTS
    assert ChannelLayout.from_message(layout.to_message()) == layout


def tensor(*shape: int) -> Tensor:
    return Tensor(DataType.F32, shape, ())


@pytest.mark.parametrize(
    ("shape", "iterations", "options", "expected"),
    [
        # (dim, run_units, batch_units, max_units)
        ((3, 4), 1, {}, (0, 1, 1, 0)),
        ((3, 4), 5, {}, (0, 5, 1, 5)),
        ((3, 4), 5, {"batching": False}, (0, 5, 1, 0)),
        ((3, 4), 1, {"batching_dim": 0}, (0, 3, 3, 64)),
        ((3, 4), 2, {"batching_dim": 1}, (1, 8, 4, 64)),
        ((3, 4), 1, {"batching_dim": 0, "max_batch_size": 1}, (0, 3, 3, 3)),
        ((3, 4), 1, {"batching_dim": None}, (0, 0, 0, 0)),
        ((3, 4), 2, {"batching_dim": None}, (0, 2, 1, 2)),
        ((3, 4), 1, {"batching_dim": None, "batching": True}, (0, 3, 3, 64)),
        ((-1, 4), 1, {}, (0, 0, 0, 0)),
        ((-1, 4), 1, {"batching": True}, (0, 0, 0, 64)),
        ((-1, 4), 1, {"batching_dim": 0, "batching": False}, (0, 0, 0, 0)),
    ],
)
def test_plans(
    tmp_path: Path,
    shape: tuple[int, ...],
    iterations: int,
    options: dict[str, Any],
    expected: tuple[int, ...],
) -> None:
    path = models.regular(tmp_path / "m.popef", shape, iterations=iterations)
    plan = plan_of(path, **options)
    found = (plan.dim, plan.run_units, plan.batch_units, plan.max_units)
    assert found == expected
    assert BatchPlan.from_message(plan.to_message()) == plan
    assert plan.inputs[0].transfers == iterations


def test_units_of_requests(tmp_path: Path) -> None:
    plan = plan_of(write_fused(tmp_path / "m.popef", iterations=4, index_once=True))
    assert plan.run_units == 1
    spans = {anchor.name: anchor.span for anchor in (*plan.inputs, *plan.outputs)}
    assert spans == {
        "index": 1,
        "sum/a": 12,
        "sum/b": 12,
        "scale/input": 8,
        "sum/output": 12,
        "scale/output": 8,
    }
    assert plan.units({"index": tensor(2), "sum/a": tensor(24, 4)}) == 2
    assert plan.units({}) == 1
    with pytest.raises(InvalidInput, match="a multiple of 12 in dimension 0"):
        plan.units({"sum/a": tensor(13, 4)})
    with pytest.raises(InvalidInput, match=r"'index': \[1\].*'sum/a': \[24, 4\]"):
        plan.units({"index": tensor(1), "sum/a": tensor(24, 4)})
    given = {"index": tensor(1), "sum/a": tensor(12, 4), "scale/input": tensor(16, 4)}
    with pytest.raises(InvalidInput, match=r"'scale/input': \[16, 4\]"):
        plan.units(given)


@pytest.mark.parametrize("text", ["x", "-1", "²", "9" * 5000])
def test_batch_sizes_of_files_that_are_none(tmp_path: Path, text: str) -> None:
    model = open_model(models.affine(tmp_path / "m.popef"))
    options = (Option(OPTION_MAX_BATCH, text), *model.metadata.engine_options)
    wrong = replace(model, metadata=replace(model.metadata, engine_options=options))
    with pytest.raises(InvalidModel, match="is no size"):
        plan_batches(wrong, main_anchors(wrong), ModelRunnerConfig())


def test_inputs_of_different_numbers_of_rows_are_named() -> None:
    plan = BatchPlan(0, 0, 0, 64, (), ())
    assert plan.units({"a": tensor(3, 4), "b": tensor(3), "c": tensor(3, 1)}) == 3
    message = "inputs 'a' and 'c' have .* their shapes are \\[3, 4\\] and \\[1, 1\\]"
    with pytest.raises(InvalidInput, match=message):
        plan.units({"a": tensor(3, 4), "b": tensor(3), "c": tensor(1, 1)})


def test_what_cannot_be_regrouped(tmp_path: Path) -> None:
    fused = write_fused(tmp_path / "fused.popef", rows=(1, 1), iterations=2)
    once = write_fused(
        tmp_path / "once.popef", rows=(1, 1), iterations=2, index_once=True
    )
    assert plan_of(fused, batching_dim=0).run_units == 2
    with pytest.raises(
        InvalidConfig, match="not transfer all inputs and outputs equally"
    ):
        plan_of(once, batching_dim=0)
    with pytest.raises(InvalidConfig, match=r"batching_dim 1 must be .*'index': 0"):
        plan_of(fused, batching_dim=1)
    with pytest.raises(InvalidConfig, match="batching_dim 7"):
        plan_of(models.weighted(tmp_path / "w.popef"), batching=True, batching_dim=7)
