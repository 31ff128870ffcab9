"""Models of a device: their failures, and loading them again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    Device,
    DeviceLost,
    ExecutionFailed,
    ModelRunner,
    ModelRunnerConfig,
    OutOfMemory,
)
from engine.devices import device_models
from engine.run_failures import MOST
from engine.runner.replica_loader import ReplicaLoader
from tests.engine import models
from tests.support import until


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


@pytest.mark.parametrize("error", [OutOfMemory("full"), OSError(24, "too many files")])
def test_a_model_that_could_not_be_loaded_again_is_tried_later(
    tmp_path: Path,
    own_device: Device,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    monkeypatch.setattr(device_models, "RELOAD_PAUSE", 0.5)
    load, errors = ReplicaLoader.load, [error]

    def fails_once(*given: Any) -> list[int]:
        if errors:
            raise errors.pop()
        return load(*given)

    config = ModelRunnerConfig(replica_to_device={0: own_device})
    row = {"input": np.ones((1, 4), np.float32)}
    with ModelRunner(models.affine(tmp_path / "m.popef"), config, name="m") as runner:
        monkeypatch.setattr(ReplicaLoader, "load", fails_once)
        own_device.kill("a test does this")
        with suppress(OSError):
            own_device.recover()
        assert errors == []
        with pytest.raises(DeviceLost, match="not loaded now; it is loaded again in"):
            runner.execute(row)
        until(lambda: own_device.models.is_to_resume)
        own_device.models.resume()
        assert runner.execute(row)["output"][0, 0] == 3.0
