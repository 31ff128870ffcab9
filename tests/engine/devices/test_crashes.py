"""Whose doing it was that a process crashed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from engine import (
    Device,
    DeviceLost,
    ExecutionFailed,
    ModelRunner,
    ModelRunnerConfig,
)
from engine.devices import crashes
from engine.devices.crashes import Crashes
from tests.engine import models
from tests.support import until


def test_what_was_at_work_alone_is_blamed() -> None:
    found = Crashes()
    assert found.judge("SIGSEGV", "").culprit == ""
    death = found.judge("SIGSEGV", "runs")
    assert (death.culprit, death.times) == ("runs", 1)
    assert str(death) == "its process died of SIGSEGV, while model 'runs' was at work"
    with found.loading("loads"):
        assert found.judge("SIGBUS", "").culprit == "loads"
        # A warm-up of what is loaded.
        assert found.judge("SIGBUS", "loads").times == 2
        assert found.judge("SIGSEGV", "runs").culprit == ""
        with found.loading("other"):
            assert found.judge("SIGSEGV", "").culprit == ""
    assert found.judge("SIGSEGV", "").culprit == ""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "exit code 1"])
def test_what_comes_from_outside_is_nobodys_doing(how: str) -> None:
    assert str(Crashes().judge(how, "runs")) == f"its process died of {how}"


def test_only_what_was_lately_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Crashes()
    often = [found.judge("SIGSEGV", "runs") for _ in range(crashes.MOST)]
    assert [death.is_once_too_often for death in often] == [False, False, True]
    assert not found.judge("SIGSEGV", "other").is_once_too_often
    monkeypatch.setattr(crashes, "WINDOW", 0.0)
    assert found.judge("SIGSEGV", "runs").times == 1


def test_how_a_process_ended_is_told(own_device: Device) -> None:
    for number in (signal.SIGSEGV, signal.SIGKILL):
        assert own_device.pid is not None
        os.kill(own_device.pid, number)
        until(lambda: not own_device.check())
        assert own_device.lost_by == f"its process died of {number.name}"
        own_device.recover()


def test_a_runner_that_crashes_its_device_again_and_again_is_given_up(
    tmp_path: Path, own_device: Device
) -> None:
    """Of two on one device, where nothing but the callers brings it back."""
    config = ModelRunnerConfig(replica_to_device={0: own_device}, auto_reset=True)
    good = models.affine(tmp_path / "good.popef")
    bad = models.quotient(tmp_path / "bad.popef")
    row = {"input": np.ones((1, 4), np.float32)}
    with (
        ModelRunner(good, config, name="good") as other,
        ModelRunner(bad, config, name="bad") as runner,
    ):
        for _ in range(crashes.MOST):
            assert other.execute(row)["output"][0, 0] == 3.0
            with pytest.raises(DeviceLost, match="SIGFPE, while model 'bad'") as lost:
                runner.execute({"input": np.ones((1, 1), np.int64)})
            assert lost.value.culprit == "bad"
        with pytest.raises(ExecutionFailed, match=r"it has crashed device .* 3 times"):
            runner.execute({"input": np.full((1, 1), 4)})
        assert other.execute(row)["output"][0, 0] == 3.0
        assert own_device.restarts == crashes.MOST
