"""Limits of runs on a device."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engine import Device, ExecutionFailed, ModelRunner, ModelRunnerConfig, Tensor
from tests.engine import models
from tests.support import FOR_EVER, WAIT, until


def test_a_run_of_others_is_looked_at_too(own_device: Device) -> None:
    assert not own_device.limits.is_running
    own_device.invite().close()
    assert own_device.limits.is_running
    own_device.kill("the test wants a new process")
    own_device.recover()
    assert not own_device.limits.is_running


def test_a_run_beyond_its_limit_is_told_to_end(
    tmp_path: Path, own_device: Device
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: own_device}, run_timeout=0.2)
    with ModelRunner(models.slow(tmp_path / "m.popef"), config) as runner:
        count = Tensor.from_numpy(np.array(FOR_EVER, np.int64))
        assert own_device.limits.judge(own_device.ping()) is None  # nothing runs
        request = runner.submit({"count": count})
        until(lambda: own_device.ping().running_ns > 200_000_000)
        end = own_device.limits.judge(own_device.ping())
        assert end is not None
        end()
        assert request.wait(WAIT)
        assert isinstance(request.error, ExecutionFailed)
        assert "exceeded the limit of 0.2 s" in str(request.error)
        assert runner.failure is None
        assert own_device.restarts == 0
