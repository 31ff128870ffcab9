"""Finding and attaching devices: specifications, exclusiveness, the wait policies.

Covers: engine/devices/device_lock.py, engine/devices/device_spec.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import (
    Device,
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
from engine.devices.cores import cpu_budget, usable_cores
from engine.devices.device_lock import try_claim
from engine.devices.device_spec import OPTION_THREADS
from engine.devices.thread_plan import ThreadPlan
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


@pytest.mark.parametrize("named", [False, True])
def test_programs_that_name_no_pool_have_one_rule(
    named: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A manager, a runner and a session see the same pool: a device for each core."""
    monkeypatch.setenv("POPGATE_POOL", f"default-{os.getpid()}-{named}")
    cores = max(2, usable_cores())
    if named:
        cores = 2
        monkeypatch.setenv("POPGATE_DEVICES", "cpu:2")
    path = models.affine(tmp_path / "m.popef")
    manager = DeviceManager()
    assert manager.units == tuple(f"cpu:{n}" for n in range(cores))
    assert [info.id for info in manager.list()] == list(manager.units)
    claims = [try_claim(unit) for unit in manager.units[1:]]
    config = ModelRunnerConfig()
    try:
        with ModelRunner(path, config) as runner:
            assert [device.id for device in runner.devices] == ["cpu:0"]
            assert all(info.state == "attached" for info in manager.list())
            refused = f"no device is free: .*set POPGATE_DEVICES=cpu:{cores + 1}$"
            with pytest.raises(NoDeviceAvailable, match=refused):
                manager.get_device()
            with pytest.raises(NoDeviceAvailable, match=refused):
                ModelRunner(path, config)
            wait = DeviceWaitConfig.with_timeout(0.01, 0.001)
            with pytest.raises(
                DeviceWaitTimeout, match=r"within 0\.01 s: .*; wait for"
            ):
                ModelRunner(path, replace(config, device_wait_config=wait))
    finally:
        for claim in claims:
            if claim is not None:
                claim.close()
    assert [info.state for info in manager.list()] == ["free"] * cores


def test_a_manager_may_overcommit_the_default_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POPGATE_POOL", f"overcommit-{os.getpid()}")
    program, manager = DeviceManager(), DeviceManager(overcommit=True)
    cores = len(program.units)
    claims = [try_claim(unit) for unit in program.units]
    try:
        with manager.get_device() as device:
            assert device.id == f"cpu:{cores}"
            # It shares the cores with the default pool, and whoever looks sees it.
            assert device.threads == 1
            assert program.plan.devices == manager.plan.devices == cores + 1
            assert [info.id for info in program.list()] == [*program.units, device.id]
            assert program.list() == manager.list()
    finally:
        for claim in claims:
            if claim is not None:
                claim.close()
    monkeypatch.setenv("POPGATE_DEVICES", "cpu:2")
    assert DeviceManager(overcommit=True).units == ("cpu:0", "cpu:1")


def test_the_environment_names_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPGATE_DEVICES", "cpu:50-52")
    manager = DeviceManager()
    assert manager.units == ("cpu:50", "cpu:51", "cpu:52")
    assert manager.plan.devices == 3
    assert DeviceManager("cpu:1").units == ("cpu:0",)
    with manager.get_device() as device:
        assert device.id == "cpu:50"
    monkeypatch.setenv("POPGATE_DEVICES", "cpx:4")
    with pytest.raises(
        InvalidConfig, match=r"^POPGATE_DEVICES: invalid devices 'cpx:4'"
    ):
        DeviceManager()
    monkeypatch.setenv("POPGATE_DEVICES", "")
    assert DeviceManager().units[0] == "cpu:0"


@pytest.mark.parametrize("strategy", list(DeviceWaitStrategy))
def test_what_the_pool_can_never_give_is_refused_at_once(
    strategy: DeviceWaitStrategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it waited, it would wait for what it has itself."""
    path = models.affine(tmp_path / "m.popef")
    model = load_model(path)
    pair = replace(model, metadata=replace(model.metadata, num_ipus=2))
    wait = DeviceWaitConfig(strategy, timeout=600, sleep_time=600)
    monkeypatch.setenv("POPGATE_DEVICES", "cpu:53-54")
    manager = DeviceManager()

    def refused(wanted: object, count: int, given: dict[int, Device]) -> str:
        config = ModelRunnerConfig(
            replication_factor=count, replica_to_device=given, device_wait_config=wait
        )
        with pytest.raises(NoDeviceAvailable) as error:
            ModelRunner(wanted, config)  # type: ignore[arg-type]
        assert all(info.state == "free" or given for info in manager.list())
        return str(error.value)

    assert refused(path, 3, {}) == (
        "3 replicas of 1 unit each are needed, but the pool has 2 (cpu:53, cpu:54); "
        "set POPGATE_DEVICES=cpu:3 or lower replication_factor"
    )
    assert refused(pair, 2, {}) == (
        "2 replicas of 2 units each are needed, but the pool has 2 (cpu:53, cpu:54); "
        "set POPGATE_DEVICES=cpu:4 or lower replication_factor"
    )
    with manager.get_device() as device, manager.create_ipu_model_device() as free:
        # The runner keeps what it was given; what is no unit of the pool takes none.
        assert refused(path, 4, {0: device, 3: free}) == (
            "2 replicas of 1 unit each are needed, besides 1 unit that other "
            "replicas hold, but the pool has 2 (cpu:53, cpu:54); "
            "set POPGATE_DEVICES=cpu:3 or lower replication_factor"
        )
    with pytest.raises(NoDeviceAvailable, match=r"3 units .* POPGATE_DEVICES=cpu:3$"):
        manager.get_device(3, wait)
    with pytest.raises(NoDeviceAvailable, match="there is no device 'cpu:99'"):
        manager.get_specific_device("cpu:99", wait)
    for none in (0, -1):
        with pytest.raises(NoDeviceAvailable, match=f"at least 1 replica, got {none}"):
            manager.get_devices(none, 1, wait)
    # Units of two kinds are never one device.
    monkeypatch.setattr("engine.devices.device_manager._has_gpu_build", lambda: True)
    monkeypatch.setenv("POPGATE_DEVICES", "cpu:55-55,cuda:0")
    config = ModelRunnerConfig(device_wait_config=wait)
    with pytest.raises(
        NoDeviceAvailable, match="configure more devices in POPGATE_DEVICES"
    ):
        ModelRunner(pair, config)
    with pytest.raises(NoDeviceAvailable, match=r"; configure more devices$"):
        DeviceManager("cpu:55-55,cuda:0").get_device(pair, wait)


def test_replicas_get_their_devices_all_together_or_not_at_all(tmp_path: Path) -> None:
    """Two runners that hold one each and wait for another would wait for ever."""
    path = models.affine(tmp_path / "m.popef")
    manager = DeviceManager("cpu:56-57")
    wait = DeviceWaitConfig(DeviceWaitStrategy.WAIT_FOREVER, sleep_time=0.01)
    config = ModelRunnerConfig(replication_factor=2, device_wait_config=wait)
    used = []

    def use() -> None:
        with ModelRunner(path, config, manager=manager) as runner:
            used.append({device.id for device in runner.devices})

    threads = [threading.Thread(target=use) for _ in range(3)]
    with manager.get_specific_device("cpu:57"):
        for thread in threads:
            thread.start()
        with manager.get_specific_device("cpu:56", wait):
            pass  # nobody keeps it while the other is not to be had
    for thread in threads:
        thread.join(120)
    assert used == [{"cpu:56", "cpu:57"}] * 3


def test_processes_wait_for_each_other_as_configured(tmp_path: Path) -> None:
    path = models.affine(tmp_path / "m.popef")
    program = (
        "import sys\n"
        "from engine import *\n"
        "wait = DeviceWaitConfig(DeviceWaitStrategy.WAIT_FOREVER, sleep_time=0.01)\n"
        "config = ModelRunnerConfig(replication_factor=2, device_wait_config=wait)\n"
        "with ModelRunner(sys.argv[1], config) as runner:\n"
        "    print('+'.join(device.id for device in runner.devices))\n"
    )
    environment = {**os.environ, "POPGATE_DEVICES": "cpu:58-59"}
    manager = DeviceManager("cpu:58-59")
    with manager.get_specific_device("cpu:59"):
        programs = [
            subprocess.Popen(
                [sys.executable, "-c", program, path],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        with pytest.raises(DeviceWaitTimeout):
            manager.get_device(2, DeviceWaitConfig.with_timeout(0.01, 0.001))
        assert [program.poll() for program in programs] == [None, None]
    for program_ in programs:
        out, _ = program_.communicate(timeout=120)
        assert (program_.returncode, out) == (0, "cpu:58+cpu:59\n")


def test_attached_devices_of_the_default_pool_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POPGATE_POOL", f"shares-{os.getpid()}")
    cores = max(1, int(cpu_budget().cores))
    share = max(1, cores // 2)
    manager = DeviceManager()
    with manager.get_device() as first:
        assert (first.threads, manager.plan.devices) == (cores, 1)
        with DeviceManager().get_device() as second:  # another manager, or process
            assert (first.threads, second.threads) == (share, share)
            assert f", {share} thread" in repr(first)
            assert str(share) in str(manager.plan)
        assert first.threads == cores
        with manager.create_ipu_model_device(3) as model:  # software needs cores too
            assert (first.threads, model.threads) == (share, share)
        asked = {OPTION_THREADS: "7"}
        with manager.get_device(1, options=asked) as other:
            assert (first.threads, other.threads) == (share, 7)
    config = ModelRunnerConfig(replication_factor=2)
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
        assert [device.threads for device in runner.devices] == [share, share]


def test_threads_are_shared_out() -> None:
    cores = usable_cores()
    assert DeviceManager("cpu:1").plan.devices == 1
    manager = DeviceManager(f"cpu:{2 * cores}", reserve_cores=1)
    assert (manager.plan.devices, manager.plan.reserved) == (2 * cores, 1)
    with DeviceManager("cpu:42-42", reserve_cores=1).get_device() as device:
        assert device.threads == ThreadPlan(cpu_budget(), 1, 1).threads()


def test_attaching_is_exclusive_and_ends_with_close() -> None:
    manager = DeviceManager("cpu:40-41")
    with manager.get_device() as first, manager.get_device() as second:
        assert {first.id, second.id} == {"cpu:40", "cpu:41"}
        with pytest.raises(NoDeviceAvailable, match="cpu:40, cpu:41"):
            DeviceManager("cpu:40-41").get_device()
        with pytest.raises(NoDeviceAvailable):
            manager.get_specific_device("cpu:40")
    with manager.get_specific_device("cpu:41") as device:
        assert device.id == "cpu:41"


def test_one_device_may_take_several_units() -> None:
    manager = DeviceManager("cpu:42-44")
    with manager.get_device(2) as pair:
        assert pair.id == "cpu:42+cpu:43"
        assert len(pair.units) == 2
        with pytest.raises(NoDeviceAvailable):
            manager.get_device(2)
        with manager.get_device(1) as single:  # the failed try took nothing
            assert single.id == "cpu:44"
    with pytest.raises(NoDeviceAvailable, match="4 units"):
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
    with pytest.raises(InvalidConfig, match="timeout must be a number, got '1'"):
        DeviceWaitConfig(timeout="1")  # type: ignore[arg-type]
    for wrong in (3, "NO_WAIT", None):
        with pytest.raises(InvalidConfig, match="strategy must be a DeviceWaitStrat"):
            DeviceWaitConfig(wrong)  # type: ignore[arg-type]
    for strategy in DeviceWaitStrategy:  # any other value would wait for ever
        config = DeviceWaitConfig(strategy.value)  # type: ignore[arg-type]
        assert config.strategy is strategy


def test_a_model_says_what_its_device_is(tmp_path: Path) -> None:
    path = models.affine(tmp_path / "m.popef")
    model = load_model(path)
    manager = DeviceManager("cpu:44-46")
    options = (Option(OPTION_THREADS, "3"), Option("autoSync", "true"))
    wants = replace(
        model, metadata=replace(model.metadata, num_ipus=2, device_options=options)
    )
    with manager.get_device(wants) as device:
        assert (len(device.units), device.threads) == (2, 3)
        assert device.ipu_version == manager.ipu_hardware_version() == -1
        with pytest.raises(NoDeviceAvailable):
            manager.get_device(wants)
        with manager.get_specific_device("cpu:46", options=wants) as third:
            assert (len(third.units), third.threads) == (1, 3)
            with pytest.raises(NoDeviceAvailable):
                manager.get_specific_device("cpu:46", options=wants)
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
        manager.create_ipu_model_device(ipus, tiles_per_ipu=4) as small,
        manager.get_device() as pooled,
    ):
        assert (len(one.units), one.ipu_version) == (3, 2)
        assert (len(small.units), small.ipu_version, small.threads) == (2, 21, 1)
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
    monkeypatch.setattr("engine.devices.device_manager.find_spec", lambda name: None)
    with pytest.raises(InvalidConfig, match="'cuda:1' needs the GPU build"):
        DeviceManager("cpu:1,cuda:1")
