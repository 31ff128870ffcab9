"""Getting devices, and giving them to replicas."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import model_runtime
import popef
from engine import DeviceWaitTimeout, NoDeviceAvailable, usable_cores
from model_runtime import DeviceConstraints, DeviceWaitConfig


@pytest.fixture
def model(simple: str) -> popef.Model:
    reader = popef.Reader()
    reader.parseFile(simple)
    return popef.ModelBuilder(reader).createModel()


def test_getters_until_there_is_none(
    model: popef.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pool of its own: what earlier tests forgot may wait for the garbage collector.
    monkeypatch.setenv("POPGATE_POOL", f"getters-{os.getpid()}")
    monkeypatch.setenv("POPGATE_DEVICES", "cpu:2")
    manager = model_runtime.DeviceManager()
    assert manager.ipuHardwareVersion() == -1
    wait = DeviceWaitConfig(0.01, 0.005)
    devices = [manager.getSpecificDevice(0, wait_config=wait)]
    assert devices[0].ipuVersion() == -1
    assert manager.tryGetSpecificDevice(0) is None
    assert manager.tryGetSpecificDevice("cpu:0", model, wait) is None
    assert manager.tryGetSpecificDevice("cpu:0", wait_config=wait, model=model) is None
    with pytest.raises(DeviceWaitTimeout):
        manager.getSpecificDevice("cpu:0", wait)
    device: model_runtime.Device | None = manager.getDevice(
        num_ipus=1, device_options={}, constrains=DeviceConstraints()
    )
    while device is not None:
        devices.append(device)
        device = manager.tryGetDevice(1)
    assert manager.tryGetDevice(model, wait) is None
    with pytest.raises(DeviceWaitTimeout):
        manager.getDevice(model=model, wait_config=wait)
    with pytest.raises(NoDeviceAvailable):
        manager.getDevice(1)
    with pytest.raises(NoDeviceAvailable, match="99"):
        manager.getSpecificDevice(99)
    assert len(devices) == 2
    devices.clear()
    assert manager.tryGetDevice(1) is not None


def test_a_program_that_names_no_devices_has_those_of_the_environment(
    simple: str, model: popef.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = model_runtime.ModelRunnerConfig()
    config.replication_factor = 3
    monkeypatch.setenv("POPGATE_DEVICES", "cpu:60-61")
    for wait in (DeviceWaitConfig(600, 15), DeviceWaitConfig()):
        config.device_wait_config = wait
        with pytest.raises(NoDeviceAvailable, match="set POPGATE_DEVICES=cpu:3 or"):
            model_runtime.ModelRunner(simple, config)
    monkeypatch.setenv("POPGATE_DEVICES", "cpu:60-62")
    runner = model_runtime.ModelRunner(simple, config)
    ones = np.ones((3, 4), np.float32)
    for replica_id in range(3):
        result = runner.execute({"tensor_A": ones, "tensor_B": ones}, None, replica_id)
        assert result["output"][0, 0] == 1.5
    del runner
    # A number is a place in the pool.
    device = model_runtime.DeviceManager().getSpecificDevice(2)
    assert device.engine.id == "cpu:62"


def test_a_runner_that_names_no_devices_is_refused_when_all_are_attached(
    simple: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner takes from the pool that the manager shows, with the wait policy."""
    monkeypatch.setenv("POPGATE_POOL", f"refused-{os.getpid()}")
    monkeypatch.delenv("POPGATE_DEVICES", raising=False)
    manager = model_runtime.DeviceManager()
    devices = [manager.getDevice(1)]
    while (device := manager.tryGetDevice(1)) is not None:
        devices.append(device)
    assert len(devices) == max(2, usable_cores())
    config = model_runtime.ModelRunnerConfig()
    with pytest.raises(NoDeviceAvailable, match="no device is free"):
        model_runtime.ModelRunner(simple, config)
    config.device_wait_config = DeviceWaitConfig(0.01, 0.005)
    with pytest.raises(DeviceWaitTimeout):
        model_runtime.ModelRunner(simple, config)
    devices.pop()
    runner = model_runtime.ModelRunner(simple, config)
    assert manager.tryGetDevice(1) is None
    del runner


def test_replicas_on_a_device_of_the_caller(model: popef.Model) -> None:
    config = model_runtime.ModelRunnerConfig()
    config.replication_factor = 2
    device = model_runtime.DeviceManager().getDevice(model)
    config.replica_to_device = {0: device, 1: device}
    runner = model_runtime.ModelRunner(model, config)
    ones = np.ones((3, 4), np.float32)
    for replica_id in range(2):
        result = runner.execute({"tensor_A": ones, "tensor_B": ones}, None, replica_id)
        assert result["output"][0, 0] == 1.5


def test_constraints_are_true_where_there_are_any() -> None:
    assert not DeviceConstraints()
    assert DeviceConstraints(True)
    assert DeviceConstraints(True).requiresRemoteBuffersSupport


def test_a_program_that_ends_leaves_nothing_behind(simple: str) -> None:
    """Nothing is closed in it: it ends quickly, quietly, and its devices with it."""
    program = (
        "import model_runtime, numpy as np, sys\n"
        "config = model_runtime.ModelRunnerConfig()\n"
        "config.replica_to_device[0] = model_runtime.DeviceManager().getDevice(1)\n"
        "runner = model_runtime.ModelRunner(sys.argv[1], config)\n"
        "ones = np.ones((3, 4), np.float32)\n"
        "future = runner.executeAsync({'tensor_A': ones, 'tensor_B': ones})\n"
        "print(config.replica_to_device[0].engine.pid)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, simple],
        env={**os.environ, "POPGATE_POOL": f"ends-{os.getpid()}"},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)


def test_daemon_threads_meet_the_end_of_their_program_in_silence(simple: str) -> None:
    """They are in the middle of requests and runs when everything is closed."""
    program = """
import sys, threading
import model_runtime, numpy as np

runner = model_runtime.ModelRunner(sys.argv[1])
session = model_runtime.Session(sys.argv[1])
device = model_runtime.DeviceManager().getDevice(1)
session.bindToDevice(device)
queues = session.createQueueManager()
ones = np.ones((3, 4), np.float32)
begun = [threading.Event() for _ in range(3)]

def ask(mine):
    while True:
        runner.execute({"tensor_A": ones, "tensor_B": ones})
        mine.set()

def run():
    while True:
        begun[2].set()
        session.runMainPrograms()

works = [(ask, begun[:1]), (ask, begun[1:2]), (run, ())]
for work, arguments in works:
    threading.Thread(target=work, args=arguments, daemon=True).start()
for event in begun:
    event.wait()
"""
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", program, simple],
            env={**os.environ, "POPGATE_POOL": f"daemons-{os.getpid()}"},
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert (ended.returncode, ended.stderr) == (0, "")


def test_ipu_models(model: popef.Model) -> None:
    manager = model_runtime.DeviceManager()
    ones = np.ones((3, 4), np.float32)
    devices = [
        manager.createIpuModelDevice(2),
        manager.createIpuModelDevice(1, ipu_version=21, tiles_per_ipu=2),
        manager.createIpuModelDevice(model, 2),
        manager.createIpuModelDevice(model=model, tiles_per_ipu=4),
        manager.createSmallIpuModelDevice(1),
        manager.createSmallIpuModelDevice(model=model),
    ]
    assert [device.ipuVersion() for device in devices] == [2, 21, 2, 2, 2, 2]
    assert all(device.engine.threads == 1 for device in devices[1:])
    config = model_runtime.ModelRunnerConfig()
    config.replica_to_device = {0: devices[-1]}
    runner = model_runtime.ModelRunner(model, config)
    result = runner.execute({"tensor_A": ones, "tensor_B": ones})
    assert result["output"][0, 0] == 1.5


def test_device_options() -> None:
    manager = model_runtime.DeviceManager()
    device = manager.getDevice(1, {"popgate.threads": "3", "autoSync": "true"})
    assert device.engine.threads == 3
    number = 1 - manager._manager.units.index(device.engine.id)
    other = manager.getSpecificDevice(number, {"popgate.threads": "2"})
    assert other.engine.threads == 2
