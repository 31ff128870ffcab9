"""Report of a device process about its runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engine import Device, ModelRunner, ModelRunnerConfig, Tensor
from tests.engine import models
from tests.support import FOR_EVER, WAIT, until


def count_of(value: int) -> dict[str, Tensor]:
    return {"count": Tensor.from_numpy(np.array(value, np.int64))}


def test_how_long_it_was_busy(tmp_path: Path, own_device: Device) -> None:
    """The present run counts as it goes on, and so does what a process had counted
    before it died."""
    config = ModelRunnerConfig(replica_to_device={0: own_device}, auto_reset=True)
    assert own_device.report.busy_ns == 0
    with ModelRunner(models.slow(tmp_path / "m.popef"), config) as runner:
        runner.submit(count_of(1)).wait(WAIT)
        until(lambda: own_device.ping().running_ns == 0)
        once = own_device.report.busy_ns
        assert once > 0
        assert own_device.report.busy_ns == once
        request = runner.submit(count_of(FOR_EVER))
        until(lambda: own_device.report.busy_ns > once + 50_000_000)
        assert not request.done
        before = own_device.report.busy_ns
        own_device.kill("for a test")
        assert own_device.report.busy_ns >= before
        own_device.recover()
        assert own_device.report.busy_ns >= before
        runner.submit(count_of(1)).wait(WAIT)
        until(lambda: own_device.report.busy_ns > before)
