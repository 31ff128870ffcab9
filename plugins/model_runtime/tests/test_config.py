"""Options: names, defaults, spellings that are accepted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import model_runtime
import popef
import popef_io
from engine import InvalidConfig, InvalidInput, NoDeviceAvailable
from model_runtime import DeviceWaitConfig, DeviceWaitStrategy

#: The largest number of nanoseconds, to the microsecond.
NEVER = timedelta(microseconds=(2**63 - 1) // 1000)
#: Model Runtime User Guide 3.3.
DEFAULTS = {
    "replication_factor": 1,
    "run_save_programs": False,
    "thread_safe": False,
    "frozen_inputs": {},
    "replica_to_save_programs_outputs": {},
    "replica_to_device": {},
    "check_package_hash": True,
    "timeout_ns": timedelta(seconds=5),
    "validate_io_params": True,
    "batching_dim": 0xFFFFFFFF,
    "auto_reset": False,
    "max_look_ahead": "unlimited",
    "ring_buffer_size_multiplier": 2,
    "flush_on_waiting_outputs": False,
    "batch_size_timeout_ns": NEVER,
    "data_parallel_timeout_ns": NEVER,
    "is_batch_size_timeout_enabled": False,
    "request_tracepoints_buffer_size": 1000,
    "flush_callback": None,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_default(name: str) -> None:
    config = model_runtime.ModelRunnerConfig()
    assert getattr(config, name) == DEFAULTS[name]
    assert name in str(config)


def test_a_name_that_is_no_option() -> None:
    with pytest.raises(AttributeError):
        model_runtime.ModelRunnerConfig().batch_size = 3  # type: ignore[attr-defined]


def test_configs_do_not_share_what_they_hold() -> None:
    one, other = model_runtime.ModelRunnerConfig(), model_runtime.ModelRunnerConfig()
    one.replica_to_device[0] = None  # type: ignore[assignment]
    assert other.replica_to_device == {}


SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.mark.parametrize(
    ("config", "strategy", "timeout", "sleep"),
    [
        (DeviceWaitConfig(), "NO_WAIT", 0, 15),
        (DeviceWaitConfig(DeviceWaitStrategy.WAIT_FOREVER), "WAIT_FOREVER", 0, 15),
        (DeviceWaitConfig(MINUTE), "WAIT_WITH_TIMEOUT", 60, 15),
        (DeviceWaitConfig(MINUTE, SECOND), "WAIT_WITH_TIMEOUT", 60, 1),
        (DeviceWaitConfig(MINUTE, sleepTime=SECOND), "WAIT_WITH_TIMEOUT", 60, 1),
        (DeviceWaitConfig(timeout=MINUTE), "WAIT_WITH_TIMEOUT", 60, 15),
        (
            DeviceWaitConfig(
                DeviceWaitStrategy.WAIT_WITH_TIMEOUT,
                timeout=timedelta(microseconds=0),
                sleepTime=SECOND,
            ),
            "WAIT_WITH_TIMEOUT",
            0,
            1,
        ),
        (DeviceWaitConfig(DeviceWaitStrategy.NO_WAIT, 2, 3), "NO_WAIT", 2, 3),
    ],
)
def test_device_wait(
    config: DeviceWaitConfig, strategy: str, timeout: int, sleep: int
) -> None:
    assert config.strategy.name == strategy
    assert config.timeout == timedelta(seconds=timeout)
    assert config.sleepTime == timedelta(seconds=sleep)
    assert strategy in repr(config)


def test_what_is_not_possible_is_refused(simple: str) -> None:
    config = model_runtime.ModelRunnerConfig()
    config.batching_dim = 2
    with pytest.raises(InvalidConfig, match="batching_dim 2"):
        model_runtime.ModelRunner(simple, config)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("timeout_ns", "5", "timeout_ns: expected a timedelta or a number, got str"),
        ("flush_callback", 3, "flush_callback to call, got int: 3"),
        ("device_wait_config", 3, "expected DeviceWaitConfig, got int"),
        ("replica_to_device", {0: "cpu:0"}, "expected Device, got str"),
        ("replica_to_device", [], "expected a view or a dict, got list"),
        ("frozen_inputs", {"x": [1]}, "'x': expected a numpy array of numbers"),
        ("frozen_inputs", {3: b""}, "expected the name of a tensor, got int"),
        ("replica_to_save_programs_outputs", {0: 3}, "a view or a dict, got int"),
        ("replication_factor", 1.5, "expected a whole number, got float: 1.5"),
        ("thread_safe", "no", "thread_safe: expected True or False, got str"),
        ("max_look_ahead", None, "max_look_ahead: expected a string, got NoneType"),
    ],
)
def test_options_of_another_type_are_refused_where_they_are_given(
    option: str, value: object, says: str
) -> None:
    config = model_runtime.ModelRunnerConfig()
    before = repr(config)
    with pytest.raises(TypeError, match=says):
        setattr(config, option, value)
    with pytest.raises(RuntimeError, match=says):
        model_runtime.ModelRunnerConfig(**{option: value})
    assert repr(config) == before


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("timeout_ns", -1, "a number of at least 0, got -1"),
        ("timeout_ns", -0.5, "a duration must not be negative, got -0.5 s"),
        ("timeout_ns", float("nan"), "got nan"),
        ("replication_factor", -1, "a number of at least 0"),
        ("replica_to_save_programs_outputs", {0: {"x": b"1"}}, "is read-only"),
        ("max_look_ahead", "zz", 'max_look_ahead: expected "unlimited" or a number'),
        ("max_look_ahead", "-1", "got '-1'"),
        ("max_look_ahead", -1, "got '-1'"),
        ("max_look_ahead", "", "got ''"),
    ],
)
def test_options_that_cannot_be_are_refused_where_they_are_given(
    option: str, value: object, says: str
) -> None:
    config = model_runtime.ModelRunnerConfig()
    with pytest.raises(RuntimeError, match=says) as caught:
        setattr(config, option, value)
    assert isinstance(caught.value, ValueError)
    assert getattr(config, option) == DEFAULTS[option]


def test_options_of_sessions_and_devices_are_refused_where_they_are_given() -> None:
    for options, name, wrong in (
        (model_runtime.SessionConfig(), "policy", 1),
        (model_runtime.SessionConfig(), "pred_tensor_data", 3),
        (model_runtime.SessionConfig(), "wait_config", 3),
        (model_runtime.SessionConfig(), "max_look_ahead", [0]),
        (model_runtime.DeviceWaitConfig(), "strategy", 5),
        (model_runtime.DeviceWaitConfig(), "timeout", "1"),
        (model_runtime.DeviceConstraints(), "requiresRemoteBuffersSupport", "no"),
    ):
        before = repr(options)
        with pytest.raises(TypeError, match=f"{name}: expected") as caught:
            setattr(options, name, wrong)
        assert isinstance(caught.value, RuntimeError)
        assert repr(options) == before


@pytest.mark.parametrize("value", ["zz", "-1", "1.5", "", 1 << 40, "\u0663"])
def test_look_aheads_of_sessions_are_looked_at_where_they_are_given(
    value: str | int,
) -> None:
    options = model_runtime.SessionConfig()
    with pytest.raises(RuntimeError, match='max_look_ahead: expected "unlimited" or'):
        options.max_look_ahead = value
    assert options.max_look_ahead == "unlimited"
    for taken in ("0", 7, "999999999", "unlimited"):
        options.max_look_ahead = taken
        assert options.to_engine().max_look_ahead == str(taken)


def test_durations_read_back_as_timedelta() -> None:
    config = model_runtime.ModelRunnerConfig()
    for name in ("timeout_ns", "batch_size_timeout_ns", "data_parallel_timeout_ns"):
        for given, seconds in (
            (timedelta(milliseconds=20), 0.02),
            (0.02, 0.02),
            (20_000_000, 0.02),
            (np.int64(1500), 2e-6),
            (1, 1e-6),  # what is little is not nothing, which means for ever
            (0, 0.0),
        ):
            setattr(config, name, given)
            assert getattr(config, name) == timedelta(seconds=seconds)
        for given in (2**63 - 1, 2**70, float("inf"), timedelta.max, NEVER):
            setattr(config, name, given)
            assert getattr(config, name) == NEVER
    wait = DeviceWaitConfig()
    wait.timeout, wait.sleepTime = 2, 0.5
    assert (wait.timeout, wait.sleepTime) == (2 * SECOND, SECOND / 2)


def test_never_is_never_beneath(simple: str) -> None:
    model = popef_io.load_model(simple)
    config = model_runtime.ModelRunnerConfig()
    config.timeout_ns = config.batch_size_timeout_ns
    assert config.to_engine(model).timeout_ns == 2**63 - 1
    config.timeout_ns = 0.25
    assert config.to_engine(model).timeout_ns == 250_000_000


def test_what_is_assigned_is_copied() -> None:
    """As members of C++ are, so that one view may be filled for several runners."""
    config, ones = model_runtime.ModelRunnerConfig(), np.ones(3)
    view, wait = model_runtime.InputMemoryView(), DeviceWaitConfig()
    outputs: Any = {0: model_runtime.OutputMemoryView()}
    devices: Any = {}
    view["a"] = ones
    config.frozen_inputs, config.device_wait_config = view, wait
    config.replica_to_save_programs_outputs = outputs
    config.replica_to_device = devices
    view["a"] = 2 * ones
    view["b"] = ones
    wait.timeout = 3
    outputs[0]["c"] = outputs[1] = ones
    devices[0] = None
    assert config.frozen_inputs["a"] is ones
    assert list(config.frozen_inputs) == ["a"]
    assert config.device_wait_config == DeviceWaitConfig()
    assert config.replica_to_save_programs_outputs == {0: {}}
    assert config.replica_to_device == {}
    config.frozen_inputs["b"] = ones  # what is read can be changed in place
    config.device_wait_config.strategy = DeviceWaitStrategy.WAIT_FOREVER
    assert list(config.frozen_inputs) == ["a", "b"]
    assert config.device_wait_config.strategy is DeviceWaitStrategy.WAIT_FOREVER
    session = model_runtime.SessionConfig()
    session.wait_config = wait
    wait.timeout = 4
    assert session.wait_config.timeout == 3 * SECOND


def test_a_runner_keeps_its_options(simple: str) -> None:
    config = model_runtime.ModelRunnerConfig()
    config.timeout_ns = SECOND
    runner = model_runtime.ModelRunner(simple, config)
    config.timeout_ns = MINUTE
    config.frozen_inputs["tensor_B"] = np.ones((3, 4), np.float32)
    assert runner.config().timeout_ns == SECOND
    runner.config().timeout_ns = MINUTE
    assert runner.config().timeout_ns == SECOND
    assert runner.config().frozen_inputs == {}


def test_configurations_of_another_type_are_refused(simple: str) -> None:
    options: Any = {"replication_factor": 2}
    with pytest.raises(TypeError, match="expected ModelRunnerConfig, got dict"):
        model_runtime.ModelRunner(simple, options)
    with pytest.raises(TypeError, match="expected SessionConfig, got dict"):
        model_runtime.Session(simple, options)


@pytest.mark.parametrize(
    ("value", "misspelled"),
    [
        (model_runtime.DeviceWaitConfig(), "sleep_time"),
        (model_runtime.InputData(), "dataSize"),
        (model_runtime.SessionConfig(), "waitConfig"),
        (popef.Anchor(), "name"),  # a method, which an assignment would hide
        (popef.Metadata(), "numIpus"),
    ],
)
def test_attributes_that_are_none_cannot_be_set(value: object, misspelled: str) -> None:
    with pytest.raises(AttributeError):
        setattr(value, misspelled, 1)


def test_replicas(simple: str) -> None:
    config = model_runtime.ModelRunnerConfig()
    config.replication_factor = 2
    runner = model_runtime.ModelRunner(model_runtime.PopefPaths([simple]), config)
    names = ("tensor_A", "tensor_B")
    for replica_id in range(2):
        inputs = {name: np.full((3, 4), replica_id, np.float32) for name in names}
        first = runner.execute(inputs, replica_id=replica_id)["output"]
        np.testing.assert_array_equal(
            first, runner.execute(inputs, replica_id)["output"]
        )
        future = runner.executeAsync(inputs, replica_id=replica_id)
        np.testing.assert_array_equal(first, future["output"])
        assert first[0, 0] == 1.5 * replica_id
    with pytest.raises(InvalidInput, match="replica_id must be from 0 to 1, got 2"):
        runner.execute(inputs, replica_id=2)
    assert runner.config() == config


def test_a_model_split_over_files_and_one_that_was_read(
    simple: str, tmp_path: Path
) -> None:
    reader = popef.Reader()
    reader.parseFile(simple)
    first, second = str(tmp_path / "model.popef"), str(tmp_path / "weights.popef")
    writer = popef.Writer(first)
    writer.writeMetadata(reader.metadata()[0])
    writer.createExecutable("simple", True).write(reader.executables()[0].executable())
    writer.close()
    writer = popef.Writer(second)
    writer.createTensorData(reader.tensors()[0].info).write(reader.tensors()[0].data())
    writer.close()
    ones = np.ones((3, 4), np.float32)
    paths = model_runtime.PopefPaths([first, second])
    whole = popef.Reader()
    for path in paths:
        whole.parseFile(path)
    model = popef.ModelBuilder(whole).createModel()
    sources: tuple[list[str] | popef.Model, ...] = (paths, list(paths), model)
    for source in sources:
        runner = model_runtime.ModelRunner(source, config=None)
        result = runner.execute({"tensor_A": ones, "tensor_B": ones})
        assert result["output"][0].tolist() == [1.5, 2.0, 2.5, 3.0]
        del runner


def test_more_replicas_than_devices(simple: str) -> None:
    config = model_runtime.ModelRunnerConfig()
    config.replication_factor = 1000
    with pytest.raises(NoDeviceAvailable):
        model_runtime.ModelRunner(simple, config)


def test_save_programs_run_when_a_runner_goes(simple: str) -> None:
    total = np.full((3, 4), -1, np.float32)
    raw = model_runtime.TensorMemory(total.nbytes)
    config = model_runtime.ModelRunnerConfig()
    config.replication_factor = 2
    config.run_save_programs = True
    config.replica_to_save_programs_outputs = {
        replica: model_runtime.OutputMemoryView() for replica in (0, 1)
    }
    config.replica_to_save_programs_outputs[0]["total"] = total
    config.replica_to_save_programs_outputs[1]["total"] = raw
    ones = np.ones((3, 4), np.float32)
    config.frozen_inputs["total"] = 0 * ones
    path = str(Path(simple).with_name("accumulator.popef"))
    runner = model_runtime.ModelRunner(path, config)
    # Freezing the input called so leaves the output of that name.
    assert [desc.name for desc in runner.getModelInputs()] == ["increment"]
    assert [desc.name for desc in runner.getModelOutputs()] == ["sum", "total"]
    for replica in (0, 1, 1):
        runner.execute({"increment": ones}, replica_id=replica)
    assert total[0, 0] == -1
    del runner
    np.testing.assert_array_equal(total, ones)
    np.testing.assert_array_equal(np.frombuffer(raw, np.float32), 2 * ones.ravel())


def test_frozen_memory_may_be_plain_bytes(simple: str) -> None:
    ones = np.ones((3, 4), np.float32)
    config = model_runtime.ModelRunnerConfig()
    config.frozen_inputs["tensor_B"] = (5 * ones).tobytes()
    runner = model_runtime.ModelRunner(simple, config)
    assert [desc.name for desc in runner.getExecuteInputs()] == ["tensor_A"]
    assert runner.execute({"tensor_A": ones})["output"][0, 0] == 5.5


def test_a_model_that_was_read_from_a_stream(simple: str) -> None:
    reader = popef.Reader()
    with open(simple, "rb") as file:
        reader.parseStream(file)
    runner = model_runtime.ModelRunner(popef.ModelBuilder(reader).createModel())
    ones = np.ones((3, 4), np.float32)
    result = runner.execute({"tensor_A": ones, "tensor_B": ones})
    assert result["output"][0].tolist() == [1.5, 2.0, 2.5, 3.0]


def test_numbers_of_numpy_are_good_too(simple: str) -> None:
    config = model_runtime.ModelRunnerConfig()
    config.replication_factor = np.int64(1)
    config.batching_dim = np.uint32(0)
    config.timeout_ns = np.int64(10**6)
    config.validate_io_params = np.bool_(True)
    config.check_package_hash = np.bool_(True)
    runner = model_runtime.ModelRunner(simple, config)
    rows = {
        desc.name: np.ones((1, 4), np.float32) for desc in runner.getExecuteInputs()
    }
    assert runner.execute(rows, np.int64(0))["output"].shape == (1, 4)
    assert runner.execute(rows, replica_id=np.uint8(0))["output"].shape == (1, 4)


def test_enumerators_are_shown_by_name_and_count_as_numbers() -> None:
    strategy = model_runtime.DeviceWaitStrategy.WAIT_FOREVER
    assert str(strategy) == f"{strategy}" == "DeviceWaitStrategy.WAIT_FOREVER"
    policy = model_runtime.AnchorCallbackPolicy.SKIP_CB
    assert f"{policy}" == "AnchorCallbackPolicy.SKIP_CB"
    assert f"{model_runtime.LaunchPolicy.Immediate}" == "LaunchPolicy.Immediate"
    assert (int(strategy), int(policy), int(popef.DataType.F32)) == (2, 2, 3)


def test_files_are_given_by_either_name(simple: str) -> None:
    config = model_runtime.ModelRunnerConfig()
    one = model_runtime.ModelRunner(popef_path=simple, config=config)
    assert one.getExecuteInputs()[0].name == "tensor_A"
    del one
    several = model_runtime.ModelRunner(config=config, popef_paths=[simple])
    assert several.config() == config
    session = model_runtime.Session(popef_paths=[simple])
    assert session.model().metadata.executable() == "simple"
    with pytest.raises(TypeError, match="one of model, popef_path and popef_paths"):
        model_runtime.ModelRunner(config=config)
    with pytest.raises(TypeError, match="got 2"):
        model_runtime.ModelRunner(simple, popef_path=simple)
