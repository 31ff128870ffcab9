"""What requests may bring under the original's names: batches, timeouts, flushing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import model_runtime
from engine import InvalidInput

Array = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture
def config() -> model_runtime.ModelRunnerConfig:
    config = model_runtime.ModelRunnerConfig()
    config.device_wait_config = model_runtime.DeviceWaitConfig(
        model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT,
        timeout=timedelta(seconds=60),
        sleepTime=timedelta(milliseconds=20),
    )
    return config


@pytest.fixture
def folder(simple: str) -> Path:
    return Path(simple).parent


def numbers(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def simple_request(rows: int) -> dict[str, Array]:
    return {"tensor_A": numbers(rows, 4), "tensor_B": numbers(rows, 4) + 1}


def test_multiples_only_without_batching_dim(
    simple: str, config: model_runtime.ModelRunnerConfig
) -> None:
    runner = model_runtime.ModelRunner(simple, config)
    once = np.frombuffer(runner.execute(simple_request(3))["output"], np.float32)
    twice = runner.execute(simple_request(6))["output"]
    assert twice.shape == (6, 4)
    np.testing.assert_array_equal(twice[:3].reshape(-1), once)
    assert runner.getExecuteInputs()[0].shape == [3, 4]
    with pytest.raises(InvalidInput, match="a multiple of 3"):
        runner.execute(simple_request(4))


def test_any_number_of_rows_with_batching_dim(
    simple: str, config: model_runtime.ModelRunnerConfig
) -> None:
    config.batching_dim = 0
    config.timeout_ns = timedelta(microseconds=300)
    runner = model_runtime.ModelRunner(simple, config)
    whole = runner.execute(simple_request(9))["output"]
    for rows in (1, 4, 7):
        np.testing.assert_array_equal(
            runner.execute(simple_request(rows))["output"], whole[:rows]
        )
        target = np.zeros((rows, 4), np.float32)
        runner.executeAsync(simple_request(rows), {"output": target}).wait()
        np.testing.assert_array_equal(target, whole[:rows])


def test_a_single_execute_with_too_little_for_the_iterations(
    folder: Path, config: model_runtime.ModelRunnerConfig
) -> None:
    config.timeout_ns = 20_000_000
    path = str(folder / "iterations.popef")
    runner = model_runtime.ModelRunner(path, config)
    for rows in (12, 3, 15):
        result = runner.execute({"input": numbers(rows, 4)})
        np.testing.assert_array_equal(result["output"], numbers(rows, 4) * 2 + 1)


def test_a_sub_model_of_a_fused_one(
    folder: Path, config: model_runtime.ModelRunnerConfig
) -> None:
    config.validate_io_params = False
    config.timeout_ns = 0
    runner = model_runtime.ModelRunner(str(folder / "fused.popef"), config)
    view = model_runtime.InputMemoryView()
    view["index"] = np.zeros(1, np.int64)
    view["sum/a"] = view["sum/b"] = numbers(3, 4)
    result = runner.execute(view)
    assert list(result) == ["sum/output"]
    np.testing.assert_array_equal(
        np.frombuffer(result["sum/output"], np.float32), numbers(12) * 2
    )
    view["index"] = np.ones(1, np.int64)
    with pytest.raises(InvalidInput, match="'scale/input', which was not supplied"):
        runner.execute(view)


@pytest.mark.parametrize("returns", [False, True])
def test_flush_callback(
    folder: Path, config: model_runtime.ModelRunnerConfig, returns: bool
) -> None:
    asked = []
    dummy = np.zeros((3, 4), np.float32)

    def flush(
        tensor_id: str,
        inputs: model_runtime.InputMemoryView,
        outputs: model_runtime.OutputMemoryView,
    ) -> Any:
        asked.append(tensor_id)
        if len(asked) == 1:
            return None  # without change: asked again
        if returns:
            inputs = model_runtime.InputMemoryView()
            outputs = model_runtime.OutputMemoryView()
        inputs["input"] = numbers(3, 4)
        outputs["output"] = dummy
        return (inputs, outputs) if returns else None

    # An answer that takes longer is asked for again, which a busy machine can cause.
    config.timeout_ns = 500_000_000
    config.flush_callback = flush
    runner = model_runtime.ModelRunner(str(folder / "iterations.popef"), config)
    result = runner.execute({"input": numbers(3, 4) + 7})
    np.testing.assert_array_equal(result["output"], (numbers(3, 4) + 7) * 2 + 1)
    # Three batches were missing, and each answer brought one.
    assert asked == ["input"] * 4
    np.testing.assert_array_equal(dummy, numbers(3, 4) * 2 + 1)


@pytest.mark.parametrize("returned", [5, 0, (), ({},), ({}, {}, {}), [{}, {}], ({}, 5)])
def test_a_flush_callback_that_returns_nonsense_fails_what_waits(
    folder: Path, config: model_runtime.ModelRunnerConfig, returned: Any
) -> None:
    config.timeout_ns = 5_000_000
    # Only once: on a busy machine it is asked again before all of the second request is
    # there, and None lets that go on waiting.
    answers = iter([returned])
    config.flush_callback = lambda tensor_id, inputs, outputs: next(answers, None)
    runner = model_runtime.ModelRunner(str(folder / "iterations.popef"), config)
    with pytest.raises(RuntimeError, match=r"flush_callback .*'input'. raised .*Type"):
        runner.execute({"input": numbers(3, 4)})
    assert runner.execute({"input": numbers(12, 4)})["output"].shape == (12, 4)
