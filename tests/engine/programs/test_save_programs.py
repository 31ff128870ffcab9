"""Save programs through a runner: the accumulator keeps a total on the device.

Covers: engine/model/save_outputs.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from build_popef import SHAPE, build_accumulator

from engine import (
    Device,
    DeviceLost,
    InvalidConfig,
    InvalidInput,
    ModelRunner,
    ModelRunnerConfig,
    RunnerClosed,
)
from tests.engine import models

ONES = np.ones(SHAPE, np.float32)


@pytest.fixture(scope="module")
def accumulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_accumulator(tmp_path_factory.mktemp("save"))


def on(device: Device, replicas: int = 1, **options: object) -> ModelRunnerConfig:
    return ModelRunnerConfig(
        replication_factor=replicas,
        replica_to_device=dict.fromkeys(range(replicas), device),
        **options,  # type: ignore[arg-type]
    )


def test_they_run_whenever_asked_and_see_what_was_answered(
    accumulator: Path, shared_device: Device
) -> None:
    with ModelRunner(accumulator, on(shared_device)) as runner:
        assert np.array_equal(runner.run_save_programs()["total"], ONES * 0)
        for expected in (1, 2, 3):
            runner.execute({"increment": ONES})
            saved = runner.run_save_programs()
            assert list(saved) == ["total"]
            assert np.array_equal(saved["total"], ONES * expected)
            saved["total"][:] = -1  # the caller's own
        with pytest.raises(InvalidInput, match="replica_id must be"):
            runner.run_save_programs(1)
    with pytest.raises(RunnerClosed):
        runner.run_save_programs()


def test_at_close_each_replica_fills_its_own_memory(
    accumulator: Path, shared_device: Device
) -> None:
    memory = {n: {"total": np.full(SHAPE, -1, np.float32)} for n in (0, 1)}
    config = on(
        shared_device,
        replicas=2,
        run_save_programs=True,
        replica_to_save_programs_outputs=memory,
    )
    with ModelRunner(accumulator, config) as runner:
        runner.execute({"increment": ONES}, replica_id=0)
        for _ in range(2):
            runner.execute({"increment": ONES * 10}, replica_id=1)
        assert np.all(memory[0]["total"] == -1)
    assert np.array_equal(memory[0]["total"], ONES)
    assert np.array_equal(memory[1]["total"], ONES * 20)


def test_without_the_option_nothing_is_saved_at_close(
    accumulator: Path, shared_device: Device
) -> None:
    memory = {0: {"total": np.full(SHAPE, -1, np.float32)}}
    config = on(shared_device, replica_to_save_programs_outputs=memory)
    with ModelRunner(accumulator, config) as runner:
        runner.execute({"increment": ONES})
    assert np.all(memory[0]["total"] == -1)


def test_a_model_without_save_programs_saves_nothing(
    tmp_path: Path, shared_device: Device
) -> None:
    with ModelRunner(
        models.simple(tmp_path), on(shared_device, run_save_programs=True)
    ) as runner:
        assert runner.run_save_programs() == {}


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("sum", ONES.copy(), "have no output 'sum'; they have"),
        ("total", ONES.astype(np.float64), r"float32\[3, 4\], got float64\[3, 4\]"),
        ("total", np.zeros((2, 4), np.float32), r"float32\[2, 4\]"),
        ("total", np.broadcast_to(np.float32(0), SHAPE), "writable"),
        ("total", [1.0], "writable numpy array"),
    ],
)
def test_memory_that_does_not_fit_is_refused_before_anything_is_loaded(
    accumulator: Path, shared_device: Device, name: str, array: object, message: str
) -> None:
    config = on(shared_device, replica_to_save_programs_outputs={0: {name: array}})
    with pytest.raises(InvalidConfig, match=message):
        ModelRunner(accumulator, config)


def test_memory_for_a_replica_that_is_not() -> None:
    with pytest.raises(InvalidConfig, match=r"replicas from 0 to 0 .* got 1"):
        ModelRunnerConfig(replica_to_save_programs_outputs={1: {}})


def test_what_cannot_be_saved_is_raised_after_all_is_closed(
    accumulator: Path, own_device: Device
) -> None:
    runner = ModelRunner(accumulator, on(own_device, run_save_programs=True))
    own_device.kill("a test does this")
    with pytest.raises(DeviceLost):
        runner.close()
    assert own_device.models.users == ()
    runner.close()
