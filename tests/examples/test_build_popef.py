"""The files that people try things with do what is said of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build_popef import BATCH, FEED_LENGTH, ITERATIONS, SHAPE, WIDTH, build_all, weights

from engine import Device, DeviceManager, ModelRunner, ModelRunnerConfig
from engine.programs.executable import Executable
from engine.programs.executor import Executor
from engine.programs.model_data import ModelData, ProgramStreams
from popef_io import Model, Reader, load_model
from popgate_admin.popef_dump import dump_text

ROOT = Path(__file__).parents[2]
NAMES = [
    "simple.popef",
    "fused.popef",
    "iterations.popef",
    "accumulator.popef",
    "split_1.popef",
    "split_2.popef",
    "two_models.popef",
    "feed.popef",
]
A = np.arange(12, dtype=np.float32).reshape(SHAPE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("popef")
    build_all(folder)
    return folder


@pytest.fixture(scope="module")
def device() -> Any:
    with DeviceManager("cpu:1").get_device() as device:
        yield device


class Streams:
    """Input streams that bring one array after another; outputs are kept."""

    def __init__(self, **inputs: Any) -> None:
        self._inputs = {f"h2d_{k}": iter(v) for k, v in inputs.items()}
        self.written: dict[str, list[np.ndarray[Any, Any]]] = {}

    def read(self, handle: str) -> np.ndarray[Any, Any]:
        return next(self._inputs[handle])

    def output_memory(self, *_: object) -> None:
        return None

    def write(self, handle: str, value: np.ndarray[Any, Any]) -> None:
        name = handle.removeprefix("d2h_")
        self.written.setdefault(name, []).append(value.copy())


def executor_of(model: Model) -> Executor:
    executor = Executor(Executable.decode(model.executable.raw()), model.metadata)
    executor.run(model.metadata.program_flow.load, ProgramStreams(ModelData(model, {})))
    return executor


def test_the_script_writes_every_file(tmp_path: Path) -> None:
    script = ROOT / "examples" / "build_popef.py"
    out = tmp_path / "new" / "folder"
    done = subprocess.run(
        [sys.executable, script, "--out", out],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(out / name) for name in NAMES]
    assert sorted(p.name for p in out.iterdir()) == sorted(NAMES)


def test_a_second_build_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    build_all(tmp_path)
    for name in NAMES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_checksums_and_rules_hold_and_it_can_be_dumped(folder: Path, name: str) -> None:
    with Reader() as reader:
        reader.parse_file(folder / name)
        reader.verify()
        assert str(folder / name) in dump_text(reader, all=True)


def test_simple(folder: Path, device: Device) -> None:
    config = ModelRunnerConfig(replica_to_device={0: device})
    with ModelRunner(folder / "simple.popef", config) as runner:
        result = runner.execute({"tensor_A": A, "tensor_B": A + 1})
        np.testing.assert_allclose(result["output"], A * weights() + A + 1)


def test_fused_reads_only_the_chosen_model(folder: Path) -> None:
    model = load_model(folder / "fused.popef")
    inputs = {a.name: a.tensor_info.shape for a in model.inputs}
    assert inputs == {
        "index": (1,),
        "sum/a": SHAPE,
        "sum/b": SHAPE,
        "scale/input": (2, WIDTH),
    }
    executor = executor_of(model)
    first = Streams(index=[np.array([0])], **{"sum/a": [A], "sum/b": [A]})
    executor.run(model.metadata.program_flow.main, first)
    np.testing.assert_array_equal(first.written["sum/output"], [2 * A])
    second = Streams(index=[np.array([1])], **{"scale/input": [A[:2]]})
    executor.run(model.metadata.program_flow.main, second)
    assert list(second.written) == ["scale/output"]
    np.testing.assert_allclose(second.written["scale/output"], [A[:2] * weights()])


def test_iterations_take_several_batches_in_one_run(folder: Path) -> None:
    model = load_model(folder / "iterations.popef")
    assert model.metadata.device_iterations == ITERATIONS
    batches = [A + 10 * i for i in range(ITERATIONS)]
    streams = Streams(input=batches)
    executor_of(model).run(model.metadata.program_flow.main, streams)
    np.testing.assert_array_equal(
        streams.written["output"], [2 * batch + 1 for batch in batches]
    )


def test_accumulator_keeps_its_total(folder: Path) -> None:
    model = load_model(folder / "accumulator.popef")
    flow = model.metadata.program_flow
    executor = executor_of(model)
    sums = []
    for _ in range(3):
        streams = Streams(increment=[A])
        executor.run(flow.main, streams)
        sums += streams.written["sum"]
    np.testing.assert_array_equal(sums, [A, 2 * A, 3 * A])
    saved = Streams()
    executor.run(flow.save, saved)
    np.testing.assert_array_equal(saved.written["total"], [3 * A])
    executor.run(flow.load, ProgramStreams(ModelData(model, {"total": A})))
    again = Streams()
    executor.run(flow.save, again)
    np.testing.assert_array_equal(again.written["total"], [A])


def test_split_needs_both_files(folder: Path, device: Device) -> None:
    config = ModelRunnerConfig(replica_to_device={0: device})
    paths = [folder / "split_1.popef", folder / "split_2.popef"]
    bias = np.arange(WIDTH, dtype=np.float32)
    for order in (paths, paths[::-1]):
        with ModelRunner(order, config) as runner:
            result = runner.execute({"tensor_A": A})
            np.testing.assert_allclose(result["output"], A * weights() + bias)
    assert "bias" not in load_model(paths[0]).tensors


@pytest.mark.parametrize(("name", "factor"), [("double", 2), ("triple", 3)])
def test_two_models_are_chosen_by_name(
    folder: Path, device: Device, name: str, factor: int
) -> None:
    model = load_model(folder / "two_models.popef", executable_name=name)
    config = ModelRunnerConfig(replica_to_device={0: device})
    with ModelRunner(model, config) as runner:
        rows = np.concatenate([A] * BATCH)
        result = runner.execute({"input": rows})
        np.testing.assert_array_equal(result["output"], factor * rows)


def test_feed_brings_the_next_tensor_in_each_run(folder: Path) -> None:
    model = load_model(folder / "feed.popef")
    feed = model.feeds["offset"].data()
    assert feed.shape == (FEED_LENGTH, *SHAPE)
    streams = Streams(tensor_A=[A] * FEED_LENGTH, offset=feed)
    executor = executor_of(model)
    for _ in range(FEED_LENGTH):
        executor.run(model.metadata.program_flow.main, streams)
    np.testing.assert_array_equal(
        streams.written["output"], [A + 100 * i for i in range(FEED_LENGTH)]
    )


def test_a_runner_runs_iterations_feeds_and_state(folder: Path, device: Device) -> None:
    # What lacks iterations of a run is completed with zeros after a millisecond.
    config = ModelRunnerConfig(replica_to_device={0: device}, timeout_ns=1_000_000)
    with ModelRunner(folder / "iterations.popef", config) as runner:
        for batches in (1, ITERATIONS, ITERATIONS + 1):
            rows = np.concatenate([A + i for i in range(batches)])
            np.testing.assert_array_equal(
                runner.execute({"input": rows})["output"], 2 * rows + 1
            )
    with ModelRunner(folder / "feed.popef", config) as runner:
        assert [desc.name for desc in runner.execute_inputs] == ["tensor_A"]
        for run in range(FEED_LENGTH + 2):  # after the last tensor comes the first
            result = runner.execute({"tensor_A": A})["output"]
            np.testing.assert_array_equal(result, A + 100 * (run % FEED_LENGTH))
    total = np.zeros(SHAPE, np.float32)
    saving = ModelRunnerConfig(
        replica_to_device={0: device},
        run_save_programs=True,
        replica_to_save_programs_outputs={0: {"total": total}},
    )
    with ModelRunner(folder / "accumulator.popef", saving) as runner:
        for times in (1, 2, 3):
            result = runner.execute({"increment": A})["sum"]
            np.testing.assert_array_equal(result, times * A)
    np.testing.assert_array_equal(total, 3 * A)


def test_a_runner_takes_the_tensors_of_one_fused_model(
    folder: Path, device: Device
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: device}, validate_io_params=False)
    with ModelRunner(folder / "fused.popef", config) as runner:
        index = np.array([0])
        result = runner.execute({"index": index, "sum/a": A, "sum/b": A})
        np.testing.assert_array_equal(result["sum/output"], 2 * A)
        result = runner.execute({"index": index + 1, "scale/input": A[:2]})
        np.testing.assert_allclose(result["scale/output"], A[:2] * weights())
