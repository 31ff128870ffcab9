"""Models of a device: their failures, and loading them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine import Device, DeviceLost, ExecutionFailed, ModelRunner, ModelRunnerConfig
from engine.run_failures import MOST
from tests.engine import models


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
        for _ in range(MOST):
            assert other.execute(row)["output"][0, 0] == 3.0
            with pytest.raises(DeviceLost, match="SIGFPE, while model 'bad'") as lost:
                runner.execute({"input": np.ones((1, 1), np.int64)})
            assert lost.value.culprit == "bad"
        with pytest.raises(ExecutionFailed, match=rf"{MOST} times in a row on device"):
            runner.execute({"input": np.full((1, 1), 4)})
        assert other.execute(row)["output"][0, 0] == 3.0
        assert own_device.restarts == MOST
