"""A process feeds a device that another one owns.

Covers: engine/devices/device_channels.py, engine/devices/linked_device.py.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest

from engine import (
    Device,
    DeviceLost,
    DeviceState,
    ExecutionFailed,
    InvalidInput,
    JoinedDevice,
    JoinedRunner,
    ModelRunner,
    ModelRunnerConfig,
    RunnerClosed,
    RunnerDescription,
    Tensor,
)
from engine.transport.device_messages import (
    CloseChannel,
    Done,
    EndRun,
    EndSession,
    OpenSession,
    Ping,
    Save,
    Status,
    Stop,
    Unload,
)
from tests.engine import models
from tests.engine.joiner import joiner
from tests.support import FOR_EVER, is_gone, occupied, until


def rows(value: float, count: int = 1) -> dict[str, Tensor]:
    return {"input": Tensor.from_numpy(np.full((count, 4), value, np.float32))}


def config_of(device: Device) -> ModelRunnerConfig:
    return ModelRunnerConfig(replica_to_device={0: device}, auto_reset=True)


@pytest.fixture
def runner(tmp_path: Path, own_device: Device) -> Iterator[ModelRunner]:
    file = models.affine(tmp_path / "m.popef")
    with ModelRunner(file, config_of(own_device)) as found:
        yield found


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_maps(pid: int) -> int:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return sum("memfd" in line for line in maps.splitlines())


def test_batches_mix_the_rows_of_two_processes_and_one_may_be_killed(
    tmp_path: Path, runner: ModelRunner, own_device: Device
) -> None:
    blocker = models.slow(tmp_path / "slow.popef")
    device_pid = own_device.pid
    assert device_pid is not None
    with ModelRunner(blocker, config_of(own_device)) as busy, joiner() as other:
        before = descriptors(device_pid), memory_maps(device_pid)
        other.join(own_device, runner)
        assert own_device.ping().clients == 2
        with occupied(busy):
            mine = [runner.submit(rows(1)), runner.submit(rows(2, 2))]
            other.ask("submit", input="input", rows=[[5, 5, 5, 5]])
            other.ask("submit", input="input", rows=[[6, 6, 6, 6]])
        theirs = other.ask("collect")
        assert [request.wait(60) for request in mine] == [True, True]
        assert theirs == [[[[11.0] * 4], 5], [[[13.0] * 4], 5]]
        assert [request.batch_rows for request in mine] == [5, 5]
        with occupied(busy):
            other.ask("submit", input="input", rows=[[7, 7, 7, 7]])
            mine = [runner.submit(rows(3))]
            os.kill(other.pid, signal.SIGKILL)
            until(lambda: is_gone(other.pid))
        assert mine[0].wait(60)
        np.testing.assert_array_equal(mine[0].outputs["output"].numpy(), [[7.0] * 4])
        until(lambda: own_device.ping().clients == 1)
        # Fewer are no leak: one of a load may not have been closed before.
        until(lambda: descriptors(device_pid) <= before[0])
        until(lambda: memory_maps(device_pid) <= before[1])
    assert own_device.pid == device_pid


def test_the_death_of_the_device_fails_both_and_both_come_back(
    tmp_path: Path, own_device: Device
) -> None:
    file = models.slow(tmp_path / "slow.popef")
    with ModelRunner(file, config_of(own_device)) as runner, joiner() as other:
        other.join(own_device, runner)
        with occupied(runner):
            mine = runner.submit({"count": Tensor.from_numpy(np.array(1, np.int64))})
            other.ask("submit", input="count", rows=1, dtype="i8")
            pid = own_device.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert other.ask("collect") == ["DeviceLost"]
            assert mine.wait(60)
            assert isinstance(mine.error, DeviceLost)
        with pytest.raises(DeviceLost, match="its process died"):
            other.ask("submit", input="count", rows=1, dtype="i8")
        own_device.recover()
        other.join(own_device, runner)
        other.ask("submit", input="count", rows=1, dtype="i8")
        ((output, _),) = other.ask("collect")
        assert np.shape(output) == (128, 128)


def test_a_run_whose_process_is_ended_because_it_is_too_long(
    tmp_path: Path, own_device: Device
) -> None:
    """Its request fails as it does for the owner; the request behind it is lost."""
    limit = 0.01
    config = replace(config_of(own_device), run_timeout=limit)
    with (
        ModelRunner(models.slow(tmp_path / "slow.popef"), config) as runner,
        JoinedDevice(own_device.id, own_device.invite()) as joined,
    ):
        (_, replica), *_ = runner.description.replicas
        message = msgpack.unpackb(msgpack.packb(runner.description.to_message()))
        other = JoinedRunner(
            RunnerDescription.from_message(message), {own_device.id: joined}
        )
        count = {"count": Tensor.from_numpy(np.array(FOR_EVER, np.int64))}
        long, behind = other.submit(count), other.submit(count)
        until(lambda: own_device.ping().running_ns > limit * 1e9)
        assert joined.report.since(replica)
        own_device.kill("the run takes too long")
        assert long.wait(60)
        assert behind.wait(60)
        assert isinstance(long.error, ExecutionFailed)
        assert "a run exceeded the limit of 0.01 s" in str(long.error)
        assert isinstance(behind.error, DeviceLost)
        other.close()


def test_who_has_joined_cannot_load_unload_or_stop(
    runner: ModelRunner, own_device: Device
) -> None:
    (_, number), *_ = runner.description.replicas
    with JoinedDevice("d", own_device.invite()) as joined:
        for message in (
            Stop(),
            Unload(number),
            Save(number),
            OpenSession("os:system", b"", 0),
            EndSession(1),
            EndRun(number, 0, ""),
        ):
            with pytest.raises(InvalidInput, match="only the owner"):
                joined.call(message, Done)
        with pytest.raises(InvalidInput, match="belongs to another process"):
            joined.call(CloseChannel(1, 1), Done)
        assert joined.call(Ping(), Status).replicas == 1
    assert runner.execute({"input": np.ones((1, 4), np.float32)}, timeout=60)


def test_leaving_frees_the_channels_and_what_is_in_flight_fails(
    tmp_path: Path, own_device: Device
) -> None:
    file = models.slow(tmp_path / "slow.popef")
    with ModelRunner(file, config_of(own_device)) as runner:
        joined = JoinedDevice("d", own_device.invite())
        description = runner.description
        mine = JoinedRunner(description, {own_device.id: joined})
        with occupied(runner):
            feed = {"count": Tensor.from_numpy(np.array(1, np.int64))}
            request = mine.submit(feed)
            joined.close()
            assert isinstance(request.error, DeviceLost | RunnerClosed)
        joined.close()  # once is enough
        until(lambda: own_device.ping().clients == 1)
        assert joined.state is DeviceState.CLOSED
        with pytest.raises(DeviceLost):
            mine.submit(feed)


def test_the_end_of_a_process_that_runs_nothing_here_is_no_warning(
    runner: ModelRunner, own_device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "engine.devices.joined_device")
    devices = [JoinedDevice(name, own_device.invite()) for name in ("idle", "used")]
    description = runner.description
    unloaded, _ = (JoinedRunner(description, {own_device.id: d}) for d in devices)
    unloaded.close()
    pid = own_device.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for device in devices:
        until(lambda: not device.check())  # noqa: B023
        device.close()
    records = (r for r in caplog.records if "joined_device" in r.name)
    assert [(r.levelname, r.getMessage()) for r in records] == [
        ("DEBUG", "device idle was lost: its process died"),
        ("WARNING", "device used was lost: its process died"),
    ]


def test_a_door_that_leads_nowhere_is_told() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with pytest.raises(DeviceLost, match="device d was lost"):
        JoinedDevice("d", mine)
