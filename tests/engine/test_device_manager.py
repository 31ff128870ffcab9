"""Finding and attaching devices: specifications, exclusiveness, the wait policies."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import (
    DeviceManager,
    DeviceWaitConfig,
    DeviceWaitStrategy,
    DeviceWaitTimeout,
    InvalidConfig,
    ModelRunner,
    ModelRunnerConfig,
    NoDeviceAvailable,
    parse_devices,
)
from engine.cores import cpu_budget, usable_cores
from engine.device_request import OPTION_THREADS
from engine.thread_plan import ThreadPlan
from popef_io import Option, load_model
from tests.engine import models


@pytest.mark.parametrize(
    ("specification", "ids"),
    [
        ("cpu:1", ["cpu:0"]),
        ("cpu:3", ["cpu:0", "cpu:1", "cpu:2"]),
        ("cpu:2-4", ["cpu:2", "cpu:3", "cpu:4"]),
        ("cpu:5-5", ["cpu:5"]),
        ("cuda:0", ["cuda:0"]),
        ("cpu:2, cuda:1,cpu:1", ["cpu:0", "cpu:1", "cuda:1"]),
    ],
)
def test_specifications(specification: str, ids: list[str]) -> None:
    assert list(parse_devices(specification)) == ids


@pytest.mark.parametrize(
    "specification",
    ["", "cpu", "cpu:", "cpu:0", "cpu:3-2", "tpu:1", "cpu:99999", "cpu:-1"],
)
def test_bad_specifications_are_refused(specification: str) -> None:
    with pytest.raises(InvalidConfig):
        parse_devices(specification)


def test_the_default_pool_has_at_least_two_devices() -> None:
    manager = DeviceManager()
    assert len(manager.units) == max(2, usable_cores())
    assert all(unit.startswith("cpu:") for unit in manager.units)


def test_threads_are_shared_out() -> None:
    cores = usable_cores()
    assert DeviceManager("cpu:1").plan.devices == 1
    assert DeviceManager().plan.devices == 1
    manager = DeviceManager(f"cpu:{2 * cores}", reserve_cores=1)
    assert (manager.plan.devices, manager.plan.reserved) == (2 * cores, 1)
    with DeviceManager("cpu:42-42", reserve_cores=1).get_device() as device:
        assert device.threads == ThreadPlan(cpu_budget(), 1, 1).threads()


def test_attaching_is_exclusive_and_ends_with_close() -> None:
    manager = DeviceManager("cpu:40-41")
    with manager.get_device() as first, manager.get_device() as second:
        assert {first.id, second.id} == {"cpu:40", "cpu:41"}
        assert manager.try_get_device() is None
        with pytest.raises(NoDeviceAvailable, match="cpu:40, cpu:41"):
            DeviceManager("cpu:40-41").get_device()
        with pytest.raises(NoDeviceAvailable):
            manager.get_specific_device("cpu:40")
    assert manager.try_get_specific_device("cpu:99") is None
    with manager.get_specific_device("cpu:41") as device:
        assert device.id == "cpu:41"


def test_one_device_may_take_several_units() -> None:
    manager = DeviceManager("cpu:42-44")
    with manager.get_device(2) as pair:
        assert pair.id == "cpu:42+cpu:43"
        assert pair.num_units == 2
        with pytest.raises(NoDeviceAvailable):
            manager.get_device(2)
        with manager.get_device(1) as single:  # the failed try took nothing
            assert single.id == "cpu:44"
    with pytest.raises(NoDeviceAvailable, match="4 devices"):
        manager.get_device(4)


def test_waiting_with_a_timeout_ends() -> None:
    manager = DeviceManager("cpu:45-45")
    wait = DeviceWaitConfig.with_timeout(0.05, sleep_time=0.01)
    with manager.get_device():
        started = time.monotonic()
        with pytest.raises(DeviceWaitTimeout, match=r"0\.05 s"):
            manager.get_device(wait_config=wait)
        assert time.monotonic() - started >= 0.05


@pytest.mark.parametrize(
    "wait",
    [
        DeviceWaitConfig.with_timeout(60, sleep_time=0.01),
        DeviceWaitConfig(DeviceWaitStrategy.WAIT_FOREVER, sleep_time=0.01),
    ],
)
def test_waiting_attaches_when_the_device_comes_free(wait: DeviceWaitConfig) -> None:
    manager = DeviceManager("cpu:46-46")
    got: list[str] = []
    first = manager.get_device()

    def attach() -> None:
        with manager.get_device(wait_config=wait) as device:
            got.append(device.id)

    thread = threading.Thread(target=attach)
    thread.start()
    assert not got
    first.close()
    thread.join(30)
    assert got == ["cpu:46"]


def test_wait_options_are_checked() -> None:
    with pytest.raises(InvalidConfig, match="timeout"):
        DeviceWaitConfig(timeout=-1)
    with pytest.raises(InvalidConfig, match="sleep_time"):
        DeviceWaitConfig(sleep_time=float("nan"))
    assert DeviceWaitConfig().sleep_time == 15.0


def test_a_model_says_what_its_device_is(tmp_path: Path) -> None:
    path = models.affine(tmp_path / "m.popef")
    model = load_model(path)
    manager = DeviceManager("cpu:44-46")
    options = (Option(OPTION_THREADS, "3"), Option("autoSync", "true"))
    wants = replace(
        model, metadata=replace(model.metadata, num_ipus=2, device_options=options)
    )
    with manager.get_device(wants) as device:
        assert (device.num_units, device.threads) == (2, 3)
        assert device.ipu_version == manager.ipu_hardware_version() == -1
        assert manager.try_get_device(wants) is None
        with manager.get_specific_device("cpu:46", options=wants) as third:
            assert (third.num_units, third.threads) == (1, 3)
            assert manager.try_get_specific_device("cpu:46", options=wants) is None
    with manager.get_device(1, options={OPTION_THREADS: "2", "other": "x"}) as device:
        assert device.threads == 2
        with ModelRunner(path, ModelRunnerConfig(replica_to_device={0: device})) as run:
            assert run.ready
    with ModelRunner(wants, manager=manager) as runner:
        assert runner.devices[0].id == "cpu:44+cpu:45"
    for bad in ("0", "-1", "1025", "many", ""):
        with pytest.raises(InvalidConfig, match=r"popgate\.threads"):
            manager.get_device(1, options={OPTION_THREADS: bad})


def test_ipu_models_take_nothing_of_the_pool(tmp_path: Path) -> None:
    path = models.affine(tmp_path / "m.popef")
    model = load_model(path)
    manager = DeviceManager("cpu:47-47")
    ipus = replace(model, metadata=replace(model.metadata, num_ipus=2, ipu_version=21))
    with (
        manager.create_ipu_model_device(3) as one,
        manager.create_small_ipu_model_device(ipus) as small,
        manager.get_device() as pooled,
    ):
        assert (one.num_units, one.ipu_version) == (3, 2)
        assert (small.num_units, small.ipu_version, small.threads) == (2, 21, 1)
        assert pooled.id == "cpu:47"
        assert one.threads == manager.plan.threads(1)
        for device in (one, small):
            config = ModelRunnerConfig(replica_to_device={0: device}, auto_reset=True)
            with ModelRunner(path, config) as runner:
                row = {"input": np.ones((1, 4), np.float32)}
                assert np.all(runner.execute(row)["output"] == 3)
                device.kill("a test does this")
                assert np.all(runner.execute(row)["output"] == 3)
    for bad in ({"ipu_version": 3}, {"tiles_per_ipu": 1473}, {"wanted": 0}):
        with pytest.raises(InvalidConfig):
            manager.create_ipu_model_device(**bad)


def test_a_gpu_needs_the_gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.device_manager.find_spec", lambda name: None)
    with pytest.raises(InvalidConfig, match="'cuda:1' needs the GPU build"):
        DeviceManager("cpu:1,cuda:1")
