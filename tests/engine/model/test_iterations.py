"""Results cut into those of device iterations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from engine.model.batch_plan import AnchorRows, BatchPlan
from engine.model.iterations import split_iterations
from engine.tensor import Array, Tensor


def plan(*outputs: AnchorRows, dim: int = 0) -> BatchPlan:
    return BatchPlan(dim, 1, 1, 0, (), outputs)


def split(made: BatchPlan, **arrays: Array) -> list[dict[str, list[object]]]:
    outputs: Mapping[str, Tensor] = {
        name: Tensor.from_numpy(array) for name, array in arrays.items()
    }
    return [
        {name: tensor.numpy().tolist() for name, tensor in part.items()}
        for part in split_iterations(made, outputs)
    ]


def test_rows_of_each_iteration() -> None:
    y = np.arange(12, dtype=np.float32).reshape(6, 2)
    parts = split(plan(AnchorRows("y", 2, 1, 3)), y=y)
    assert parts == [{"y": y[i : i + 2].tolist()} for i in (0, 2, 4)]


def test_the_last_one_may_be_short_and_runs_may_follow_each_other() -> None:
    y = np.arange(5, dtype=np.int64)
    assert split(plan(AnchorRows("y", 2, 1, 2)), y=y) == [
        {"y": [0, 1]},
        {"y": [2, 3]},
        {"y": [4]},
    ]


def test_free_sizes_are_shared_equally() -> None:
    y = np.arange(4, dtype=np.int64)
    parts = split(plan(AnchorRows("y", 0, 1, 2)), y=y)
    assert parts == [{"y": [0, 1]}, {"y": [2, 3]}]


def test_what_is_written_once_is_in_every_part() -> None:
    made = plan(AnchorRows("y", 1, 1, 2), AnchorRows("once", 1, 1, 1))
    parts = split(made, y=np.arange(2), once=np.array([7]))
    assert parts == [{"y": [0], "once": [7]}, {"y": [1], "once": [7]}]


def test_strings_and_other_dimensions() -> None:
    y = np.array([[b"a", b"b"], [b"c", b"d"]], dtype=np.object_)
    parts = split(plan(AnchorRows("y", 1, 1, 2), dim=1), y=y)
    assert parts == [{"y": [[b"a"], [b"c"]]}, {"y": [[b"b"], [b"d"]]}]


@pytest.mark.parametrize(
    "made",
    [
        plan(AnchorRows("y", 1, 1, 1)),
        plan(AnchorRows("y", 4, 1, 2)),
        plan(AnchorRows("y", 1, 1, 2), AnchorRows("z", 1, 1, 2)),
    ],
)
def test_in_one_part(made: BatchPlan) -> None:
    arrays = {"y": np.arange(4), "z": np.arange(3)}
    assert len(split(made, **arrays)) == 1
