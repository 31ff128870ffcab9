"""Replicas: on devices of their own or on one, more than there are devices, shared
weights.

Covers: engine/runner/replica_loader.py.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from engine import (
    Device,
    DeviceManager,
    DeviceWaitConfig,
    DeviceWaitTimeout,
    InvalidConfig,
    InvalidInput,
    ModelRunner,
    ModelRunnerConfig,
    NoDeviceAvailable,
    Tensor,
)
from engine.runner import replica_lines
from engine.transport.channel import Channel
from tests.engine import models

ROW = np.ones((1, 4), np.float32)
WEIGHTS = 32 << 20


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.affine(tmp_path_factory.mktemp("replicas") / "m.popef")


def on_one(device: Device, count: int) -> ModelRunnerConfig:
    return ModelRunnerConfig(
        replication_factor=count, replica_to_device=dict.fromkeys(range(count), device)
    )


def memory_of(device: Device) -> int:
    """Bytes that the device process has in memory."""
    for line in Path(f"/proc/{device.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_replicas_on_one_device_share_weights(tmp_path: Path) -> None:
    rows = WEIGHTS // 4 // 1024
    path = models.write_model(
        tmp_path / "heavy.popef",
        [helper.make_node("MatMul", ["input", "w"], ["output"])],
        [models.Port("input", (-1, rows))],
        [models.Port("output", (-1, 1024))],
        {"w": np.ones((rows, 1024), np.float32)},
        batching="rows",
    )
    taken = {}
    for count in (1, 4):
        with DeviceManager("cpu:54-54").get_device() as device:
            before = memory_of(device)
            with ModelRunner(path, on_one(device, count)) as runner:
                for replica in range(count):
                    x = np.full((1, rows), replica, np.float32)
                    got = runner.execute({"input": x}, replica_id=replica)["output"]
                    assert np.all(got == replica * rows)
                taken[count] = memory_of(device) - before
    assert taken[1] > WEIGHTS
    assert taken[4] < taken[1] + WEIGHTS // 2, taken


def test_a_reload_loads_all_replicas_of_a_device(
    affine: Path, own_device: Device
) -> None:
    with ModelRunner(affine, on_one(own_device, 3)) as runner:
        own_device.kill("a test does this")
        assert not runner.ready
        assert runner.stats.ready == 0
        own_device.recover()
        assert runner.ready
        assert runner.stats.ready == 3
        for replica in range(3):
            got = runner.execute({"input": ROW}, replica_id=replica)["output"]
            assert np.all(got == 3)
        assert own_device.ping().replicas == 3
    assert own_device.ping().replicas == 0
    assert (runner.stats.replicas, runner.stats.ready) == (3, 0)


@pytest.mark.skipif(
    not replica_lines.__file__.endswith(".py"),
    reason="compiled code calls its own functions straight",
)
def test_a_model_without_lines_does_not_stay_on_the_device(
    affine: Path, own_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, left = Channel.create, [1]

    def fails(*given: Any) -> Channel:
        if not left:
            raise OSError(24, "too many open files")
        left.pop()
        return create(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "create", fails)
        with pytest.raises(OSError, match="too many"):
            ModelRunner(affine, on_one(own_device, 2))
        assert own_device.ping().replicas == 0
    with ModelRunner(affine, on_one(own_device, 2)):
        assert own_device.ping().replicas == 2


def test_a_model_that_was_loaded_anew_is_not_loaded_again_after_its_pause(
    affine: Path, own_device: Device
) -> None:
    """The device died while it loaded the model, and a client has loaded it since."""
    with ModelRunner(affine, on_one(own_device, 2), name="m") as runner:
        own_device.models.rest("m")
        assert own_device.models.is_to_resume
        loaded = runner.description.replicas
        own_device.models.resume()
        assert not own_device.models.is_to_resume
        assert runner.description.replicas == loaded
        assert own_device.ping().replicas == 2


def test_without_an_id_the_least_busy_takes_it(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.slow(tmp_path / "m.popef")
    with ModelRunner(path, on_one(shared_device, 2)) as runner:
        count = {"count": Tensor.from_numpy(np.array(100, np.int64))}
        requests = [runner.submit(count) for _ in range(4)]
        assert len({id(request.channel) for request in requests}) == 2
        assert all(request.wait(30) for request in requests)


def test_fewer_devices_than_replicas_end_as_the_wait_policy_says(affine: Path) -> None:
    manager = DeviceManager("cpu:50-51")
    two = ModelRunnerConfig(replication_factor=2)
    timeout = ModelRunnerConfig(
        replication_factor=2,
        device_wait_config=DeviceWaitConfig.with_timeout(0.05, 0.01),
    )
    with manager.get_specific_device("cpu:51"):
        with pytest.raises(NoDeviceAvailable):
            ModelRunner(affine, two, manager=manager)
        with pytest.raises(DeviceWaitTimeout):
            ModelRunner(affine, timeout, manager=manager)
        # What could have been the first one's is free again.
        assert [info.state for info in manager.list()] == ["free", "attached"]


def test_a_device_that_comes_free_in_time_is_taken(affine: Path) -> None:
    manager = DeviceManager("cpu:52-52")
    device = manager.get_device()
    config = ModelRunnerConfig(
        device_wait_config=DeviceWaitConfig.with_timeout(60, 0.01)
    )
    closer = threading.Timer(0.05, device.close)
    closer.start()
    with ModelRunner(affine, config, manager=manager) as runner:
        closer.join()
        assert runner.devices[0].id == "cpu:52"


def test_given_and_attached_devices_mix(affine: Path, shared_device: Device) -> None:
    manager = DeviceManager("cpu:53-53")
    config = ModelRunnerConfig(
        replication_factor=2, replica_to_device={1: shared_device}
    )
    with ModelRunner(affine, config, manager=manager) as runner:
        assert [d.id for d in runner.devices] == ["cpu:53", shared_device.id]
        for bad in (-1, 2):
            with pytest.raises(InvalidInput, match=f"replica_id must be .* got {bad}"):
                runner.execute({"input": ROW}, replica_id=bad)
    # The one that was given stays its owner's.
    assert shared_device.ping()
    assert [info.state for info in manager.list()] == ["free"]
    with pytest.raises(InvalidConfig, match="replicas from 0 to 1"):
        ModelRunnerConfig(replication_factor=2, replica_to_device={2: shared_device})
