"""What follows when a device fails: the error table of the guide, row by row.

Covers: engine/faults.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import (
    DeadlineExceeded,
    Device,
    DeviceFailed,
    DeviceLost,
    DeviceManager,
    DeviceState,
    InvalidInput,
    ModelRunner,
    ModelRunnerConfig,
    Tensor,
)
from engine.faults import DeviceFault, FaultKind, RecoveryAction
from engine.transport.device_messages import (
    FAULTS,
    Done,
    FaultTold,
    InjectFailure,
    Ping,
)
from engine.transport.messages import MalformedMessage, encode
from engine.worker.injected_failures import VARIABLE, Failure
from tests.engine import models
from tests.support import until

ROW = {"input": np.ones((1, 4), np.float32)}
RESETTABLE = [Failure.APPLICATION, Failure.IPU_RESET, Failure.DEATH]
# One of each row of the table; what else a reset does not cure is below.
FOR_SOMEBODY = [Failure.PARTITION_RESET, Failure.UNRECOVERABLE, Failure.UNKNOWN]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.affine(tmp_path_factory.mktemp("failures") / "m.popef")


@pytest.fixture(scope="module")
def devices() -> Iterator[list[Device]]:
    """Two devices that fail when they are told to."""
    manager = DeviceManager("cpu:40-41")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "1")
        with manager.get_device() as first, manager.get_device() as second:
            yield [first, second]


def inject(device: Device, failure: Failure, *, after: int = 0) -> None:
    """Let each replica of `device` fail in its next run, or `after` so many runs."""
    device.call(InjectFailure(failure.value, after), Done)


def config(devices: list[Device], *, auto_reset: bool) -> ModelRunnerConfig:
    return ModelRunnerConfig(
        replication_factor=len(devices),
        replica_to_device=dict(enumerate(devices)),
        auto_reset=auto_reset,
    )


def fail(runner: ModelRunner, device: Device, failure: Failure) -> list[str]:
    """A request to replica 0 that is served, and three that meet the failure or wait
    behind it: how those end."""
    inject(device, failure, after=1)
    runner.execute(ROW, replica_id=0)
    with device.lock:  # nobody learns of the failure before all have been sent
        tensors = {"input": Tensor.from_numpy(ROW["input"])}
        requests = [runner.submit(tensors, replica_id=0) for _ in range(3)]
    errors = []
    for request in requests:
        assert request.wait(30)
        assert isinstance(request.error, DeviceLost)
        errors.append(str(request.error))
    return errors


@pytest.mark.parametrize("failure", RESETTABLE)
def test_auto_reset_serves_what_comes_after_a_resettable_fault(
    path: Path, devices: list[Device], failure: Failure
) -> None:
    first, second = devices
    with ModelRunner(path, config(devices, auto_reset=True)) as runner:
        pid, before = second.pid, first.restarts
        errors = fail(runner, first, failure)
        assert len(set(errors)) == 1
        got = runner.execute(ROW, replica_id=0)["output"]
        assert np.array_equal(got, ROW["input"] * 2 + 1)
        assert first.restarts == before + 1
        # Other devices do not notice.
        runner.execute(ROW, replica_id=1)
        assert second.pid == pid


@pytest.mark.parametrize("failure", [*RESETTABLE, *FOR_SOMEBODY])
def test_without_auto_reset_all_that_comes_after_meets_the_same_error(
    path: Path, devices: list[Device], failure: Failure
) -> None:
    first, _ = devices
    before = first.restarts
    with ModelRunner(path, config(devices, auto_reset=False)) as runner:
        errors = fail(runner, first, failure)
        for _ in range(2):
            with pytest.raises(DeviceLost) as caught:
                runner.execute(ROW, replica_id=0)
            errors.append(str(caught.value))
        assert len(set(errors)) == 1, errors
        assert first.restarts == before
        runner.execute(ROW, replica_id=1)
        first.recover(by_hand=True)
        runner.execute(ROW, replica_id=0)


@pytest.mark.parametrize("failure", FOR_SOMEBODY)
def test_auto_reset_leaves_alone_what_it_cannot_cure(
    path: Path, devices: list[Device], failure: Failure
) -> None:
    first, _ = devices
    before = first.restarts
    with ModelRunner(path, config(devices, auto_reset=True)) as runner:
        errors = fail(runner, first, failure)
        with pytest.raises(DeviceFailed) as caught:
            runner.execute(ROW, replica_id=0)
        assert {*errors, str(caught.value)} == {str(caught.value)}
        fault = caught.value.fault
        assert not fault.resettable
        assert fault.kind.value in str(caught.value)
        if fault.action is not None:
            assert fault.action.value in str(caught.value)
        assert (first.state, first.restarts) == (DeviceState.FAILED, before)
        first.recover()
        assert first.state is DeviceState.FAILED
        runner.execute(ROW, replica_id=1)
        first.recover(by_hand=True)
        runner.execute(ROW, replica_id=0)


def test_a_hang_lasts_until_somebody_ends_it(path: Path, devices: list[Device]) -> None:
    first, _ = devices
    with ModelRunner(path, config(devices, auto_reset=True)) as runner:
        inject(first, Failure.HANG)
        with pytest.raises(DeadlineExceeded):
            runner.execute(ROW, timeout=0.05)
        row = {"input": Tensor.from_numpy(ROW["input"])}
        waiting = runner.submit(row, replica_id=0)
        until(lambda: first.ping().running_ns > 0)
        first.kill("it hangs")
        assert isinstance(waiting.error, DeviceLost)
        assert "it hangs" in str(waiting.error)
        runner.execute(ROW, timeout=30)


def test_nobody_fails_on_order_unless_started_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with DeviceManager("cpu:42-42").get_device() as device:
        options = ModelRunnerConfig(replica_to_device={0: device})
        with ModelRunner(path, options) as runner:
            with pytest.raises(InvalidInput, match="POPGATE_INJECT_FAILURES=1"):
                inject(device, Failure.DEATH)
            runner.execute(ROW)


def test_errors_are_what_python_makes_of_the_originals() -> None:
    assert issubclass(DeviceFailed, RuntimeError)


@pytest.mark.parametrize(
    ("fault", "resettable"),
    [
        (DeviceFault(FaultKind.APPLICATION, "a"), True),
        (DeviceFault(FaultKind.RECOVERABLE, "b", RecoveryAction.IPU_RESET), True),
        (DeviceFault(FaultKind.RECOVERABLE, "c", RecoveryAction.LINK_RESET), False),
        (DeviceFault(FaultKind.RECOVERABLE, "d", RecoveryAction.FULL_RESET), False),
        (DeviceFault(FaultKind.UNRECOVERABLE, "e"), False),
        (DeviceFault(FaultKind.UNKNOWN, "f"), False),
    ],
)
def test_which_faults_a_reset_cures(fault: DeviceFault, resettable: bool) -> None:
    assert fault.resettable is resettable
    assert FAULTS.decode(encode(FaultTold(fault))).fault == fault


def test_what_is_no_fault_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="expected is one of FaultTold"):
        FAULTS.decode(encode(Ping()))
