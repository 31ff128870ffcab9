"""Fused models: requests bring the tensors of one sub-model and get its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Device, InvalidInput, ModelRunner, ModelRunnerConfig
from tests.engine.fused import write_fused

Arrays = dict[str, np.ndarray[Any, Any]]


def on(device: Device, **options: Any) -> ModelRunnerConfig:
    options = {"validate_io_params": False} | options
    return ModelRunnerConfig(replica_to_device={0: device}, **options)


def index(*numbers: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


def data(rows: int, start: int = 1) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(start, start + rows * 4, dtype=np.float32).reshape(rows, 4)


def summed(rows: int, start: int = 1, **more: Any) -> Arrays:
    return {
        "index": index(0),
        "sum/a": data(rows, start),
        "sum/b": data(rows, 5),
        **more,
    }


def scaled(rows: int, start: int = 1) -> Arrays:
    return {"index": index(1), "scale/input": data(rows, start)}


def test_the_tensors_of_one_model_are_enough(
    tmp_path: Path, shared_device: Device
) -> None:
    path = write_fused(tmp_path / "m.popef")
    with ModelRunner(path, on(shared_device)) as runner:
        first = runner.execute(summed(3))
        assert list(first) == ["sum/output"]
        np.testing.assert_array_equal(first["sum/output"], data(3) + data(3, 5))
        second = runner.execute(scaled(2))
        assert list(second) == ["scale/output"]
        np.testing.assert_array_equal(second["scale/output"], data(2) * 2)


@pytest.mark.parametrize("rows", [(3, 2), (-1, -1)])
def test_requests_for_different_models_are_never_mixed(
    tmp_path: Path, shared_device: Device, rows: tuple[int, int]
) -> None:
    path = write_fused(tmp_path / "m.popef", rows)
    with ModelRunner(path, on(shared_device)) as runner:
        sent = [(summed(3, n), scaled(2, n))[n % 2] for n in range(60)]
        results = [runner.execute_async(inputs) for inputs in sent]
        for number, (inputs, result) in enumerate(zip(sent, results, strict=True)):
            assert result.wait(30)
            if number % 2:
                expected, name = inputs["scale/input"] * 2, "scale/output"
            else:
                expected, name = inputs["sum/a"] + inputs["sum/b"], "sum/output"
            assert list(result) == [name]
            np.testing.assert_array_equal(result[name], expected)


def test_wrong_tensors_end_in_an_error_that_names_input_and_timeout(
    tmp_path: Path, shared_device: Device
) -> None:
    path = write_fused(tmp_path / "m.popef")
    for timeout_ns, words in (
        (5_000_000_000, "for its timeout of 5 s"),
        (0, "for ever"),
    ):
        with ModelRunner(path, on(shared_device, timeout_ns=timeout_ns)) as runner:
            wrong: Arrays = {"index": index(1), "sum/a": data(3), "sum/b": data(3)}
            with pytest.raises(InvalidInput, match=f"'scale/input'.*{words}"):
                runner.execute(wrong, timeout=30)
            # What it brought is not taken for the next request's.
            result = runner.execute(summed(3, 50))
            np.testing.assert_array_equal(
                result["sum/output"], data(3, 50) + data(3, 5)
            )


def test_memory_is_given_for_the_outputs_of_one_model(
    tmp_path: Path, shared_device: Device
) -> None:
    path = write_fused(tmp_path / "m.popef")
    target = np.zeros((2, 4), np.float32)
    with ModelRunner(path, on(shared_device)) as runner:
        runner.execute(scaled(2), {"scale/output": target})
        np.testing.assert_array_equal(target, data(2) * 2)
        with pytest.raises(InvalidInput, match="did not write output 'sum/output'"):
            runner.execute(scaled(2), {"sum/output": np.zeros((3, 4), np.float32)})
    strict = on(shared_device, validate_io_params=True)
    with ModelRunner(path, strict) as runner:
        with pytest.raises(InvalidInput, match="'scale/input' is missing"):
            runner.execute(summed(3))
        everything = summed(3) | {"scale/input": data(2)}
        assert list(runner.execute(everything)) == ["sum/output"]
        with pytest.raises(
            InvalidInput, match="memory for output 'sum/output' is missing"
        ):
            runner.execute(everything, {"scale/output": target})


def test_several_batches_choose_one_by_one(
    tmp_path: Path, shared_device: Device
) -> None:
    path = write_fused(tmp_path / "m.popef")
    with ModelRunner(path, on(shared_device)) as runner:
        inputs = summed(9) | {"sum/b": data(9), "index": index(0, 0, 0)}
        result = runner.execute(inputs)
        np.testing.assert_array_equal(result["sum/output"], data(9) * 2)
        with pytest.raises(InvalidInput, match="different batch sizes"):
            runner.execute(summed(6) | {"sum/b": data(6)})


def test_iterations_of_a_chosen_model(tmp_path: Path, shared_device: Device) -> None:
    path = write_fused(tmp_path / "m.popef", iterations=4)
    with ModelRunner(path, on(shared_device, timeout_ns=0)) as runner:
        # Two of four iterations; the others run on zeros, which nobody sees.
        inputs: Arrays = {"index": index(1, 1), "scale/input": data(4)}
        result = runner.execute(inputs)
        assert list(result) == ["scale/output"]
        np.testing.assert_array_equal(result["scale/output"], data(4) * 2)
    path = write_fused(tmp_path / "once.popef", iterations=4, index_once=True)
    with ModelRunner(path, on(shared_device, timeout_ns=0)) as runner:
        result = runner.execute({"index": index(1), "scale/input": data(8)})
        np.testing.assert_array_equal(result["scale/output"], data(8) * 2)
        result = runner.execute({"index": index(1, 1), "scale/input": data(16)})
        np.testing.assert_array_equal(result["scale/output"], data(16) * 2)
        with pytest.raises(InvalidInput, match="'scale/input' expects a multiple of 8"):
            runner.execute({"index": index(1), "scale/input": data(2)})
