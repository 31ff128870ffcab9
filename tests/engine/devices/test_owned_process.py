"""Process of a device: started, asked and ended by its owner."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine import (
    Device,
    DeviceLost,
    DeviceState,
    JoinedDevice,
    ModelRunner,
    ModelRunnerConfig,
    Tensor,
)
from engine.transport.device_messages import Ping, Status
from tests.engine import models
from tests.support import until


class Meanwhile(logging.Handler):
    """Does something at the moment when somebody logs."""

    def __init__(self, do: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._do = do

    def emit(self, record: logging.LogRecord) -> None:
        if "was lost" in record.getMessage():
            self._do()


def test_a_process_that_is_replaced_at_once_is_waited_for(own_device: Device) -> None:
    """Another thread may start a new process before the one that has noticed that the
    old one is gone gets to ending it."""
    old = own_device.pid
    assert old is not None
    meanwhile = Meanwhile(own_device.recover)
    logger = logging.getLogger("engine.devices.device")
    logger.addHandler(meanwhile)
    try:
        os.kill(old, signal.SIGKILL)
        until(lambda: not own_device.check())
    finally:
        logger.removeHandler(meanwhile)
    assert own_device.state is DeviceState.READY
    new = own_device.pid
    assert new is not None
    assert new != old
    own_device.ping()
    # Not even a zombie: somebody has waited for it.
    assert not Path(f"/proc/{old}").exists()


def test_a_device_that_does_not_answer_is_noticed_and_can_be_killed(
    tmp_path: Path, own_device: Device
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: own_device}, auto_reset=True)
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
        pid = own_device.pid
        assert pid is not None
        for timeout in (5, math.inf, 1e300):
            assert own_device.ping(timeout).pid == pid
        os.kill(pid, signal.SIGSTOP)
        request = runner.submit(
            {"input": Tensor.from_numpy(np.zeros((1, 4), np.float32))}
        )
        for timeout in (0.2, 0, -1, math.nan):
            with pytest.raises(DeviceLost, match="has not answered"):
                own_device.ping(timeout)
        assert not request.done
        own_device.kill("it hangs")
        assert request.done
        assert isinstance(request.error, DeviceLost)
        assert runner.execute({"input": np.zeros((1, 4), np.float32)}, timeout=60)


def test_a_device_is_not_judged_without_a_descriptor_to_ask_it(
    own_device: Device,
) -> None:
    own_device.ping_timeout = 5.0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert own_device.check_responsive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert own_device.check_responsive()
    assert own_device.restarts == 0


def test_a_process_answers_again_that_lacked_descriptors_to_answer(
    own_device: Device,
) -> None:
    """Without them it takes no connection, neither from its owner nor from guests."""
    pid, door = own_device.pid, own_device.invite()
    assert pid is not None
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with contextlib.suppress(DeviceLost):
            own_device.ping(timeout=0.5)  # it may have a descriptor for the next one
        with pytest.raises(DeviceLost, match="has not answered a ping"):
            own_device.ping(timeout=0.5)
        another = socket.socket(fileno=os.dup(door.fileno()))
        with pytest.raises(DeviceLost):
            JoinedDevice(own_device.id, another)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert own_device.ping().pid == pid
    with JoinedDevice(own_device.id, door) as joined:
        assert joined.call(Ping(), Status).pid == pid
    assert own_device.restarts == 0


@pytest.mark.parametrize("meanwhile", ["load", "run", "save"])
def test_a_device_that_hangs_does_not_keep_who_waits_for_it(
    tmp_path: Path, own_device: Device, meanwhile: str
) -> None:
    """However long loading and running may take: the process answers beside them."""
    config = ModelRunnerConfig(replica_to_device={0: own_device}, auto_reset=True)
    path = models.affine(tmp_path / "m.popef")
    row = {"input": np.zeros((1, 4), np.float32)}
    own_device.ping_timeout = 1.0
    lost = r"device cpu:20 was lost: it has not answered a ping for 1 s"
    with ModelRunner(path, config) as runner:
        assert own_device.pid is not None
        os.kill(own_device.pid, signal.SIGSTOP)
        calls: dict[str, Callable[[], object]] = {
            "load": lambda: ModelRunner(path, config),
            "run": lambda: runner.execute(row),
            "save": runner.run_save_programs,
        }
        with pytest.raises(DeviceLost, match=lost):
            calls[meanwhile]()
        assert own_device.lost_by == "it has not answered a ping for 1 s"
        own_device.ping_timeout = 60.0
        assert runner.execute(row, timeout=60)


def test_a_process_that_hangs_while_it_starts_is_not_waited_for(
    own_device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 3600\n")
    sleeper.chmod(0o755)
    assert own_device.pid is not None
    os.kill(own_device.pid, signal.SIGKILL)
    until(lambda: not own_device.check())
    with monkeypatch.context() as patch:
        patch.setattr("engine.devices.owned_process.PING_TIMEOUT", 0.5)
        patch.setattr("engine.devices.owned_process.START_TIMEOUT", 3600.0)
        patch.setattr(sys, "executable", str(sleeper))
        own_device.ping_timeout = 0.5
        with pytest.raises(DeviceLost, match=r"failed to start: process \d+ is idle"):
            own_device.recover()
    assert own_device.back_off > 0
    own_device.ping_timeout = 60.0
    own_device.recover()
    assert own_device.back_off == 0
