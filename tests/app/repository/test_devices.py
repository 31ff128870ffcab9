"""Devices on an event loop: driven, lost, brought back."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.background import DaemonPool
from app.repository.devices import DeviceWatch, GatewayDevices
from app.settings import Settings
from engine import (
    Device,
    DeviceLost,
    DeviceManager,
    DeviceState,
    ModelRunner,
    ModelRunnerConfig,
    Tensor,
)
from tests.engine import models

ROW = {"input": Tensor.from_numpy(np.zeros((1, 4), np.float32))}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.005)


def test_a_request_brings_a_device_back_that_would_be_tried_much_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where starting it has failed often, and what made it fail has passed."""
    asyncio.run(_back_by_a_request(tmp_path, monkeypatch))


async def _back_by_a_request(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    pool = DaemonPool(4, "devices")
    settings = Settings(devices="cpu:24-24", device_timeout=60)
    devices = GatewayDevices(settings, pool)
    devices.attach()
    devices.watch()
    (device,) = devices.place(1, ()).values()
    config = ModelRunnerConfig(replica_to_device={0: device}, batching_dim=None)
    path = models.affine(tmp_path / "m.popef")
    runner = await pool.run(lambda: ModelRunner(path, config))
    try:
        patch.setattr("engine.devices.device.FIRST_PAUSE", 3600.0)
        patch.setattr("engine.devices.device.LONGEST_PAUSE", 3600.0)
        with patch.context() as broken:
            broken.setattr(sys, "executable", "/nothing/there")
            assert device.pid is not None
            os.kill(device.pid, signal.SIGKILL)
            await until(lambda: device.back_off > 0)
            assert device.state is DeviceState.LOST
        (summary,) = devices.summaries()
        assert (summary.lost_by, summary.back_off) == (
            "its process died of SIGKILL",
            3600.0,
        )
        with pytest.raises(DeviceLost):
            runner.submit(ROW)
        await until(lambda: runner.ready)
        await until(lambda: devices.summaries()[0].back_off == 0.0)
        (summary,) = devices.summaries()
        assert (summary.state, summary.restarts) == ("ready", 1)
        assert (summary.lost_by, summary.back_off) == (
            "its process died of SIGKILL",
            0.0,
        )
        request = runner.submit(ROW)
        await until(lambda: request.done)
        assert request.error is None
    finally:
        devices.unwatch()
        runner.close()
        devices.close()
        pool.close()


def test_a_device_is_watched_that_came_back_without_a_descriptor_left() -> None:
    asyncio.run(_watched_again())


class LastDescriptor(DaemonPool):
    """A pool whose process has no descriptor left once a device is restarted."""

    def __init__(self) -> None:
        super().__init__(4, "devices")
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def run(self, call: Callable[[], Any]) -> Any:
        result = await super().run(call)
        if getattr(call, "__name__", "") == "recover":
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, self.limits[1]))
        return result


async def _watched_again() -> None:
    pool = LastDescriptor()
    back = asyncio.Event()
    with DeviceManager("cpu:24-24").get_device() as device:
        watch = DeviceWatch(device, asyncio.get_running_loop(), pool, back.set)
        try:
            for restarts in (1, 2):
                assert device.pid is not None
                os.kill(device.pid, signal.SIGKILL)
                await asyncio.wait_for(back.wait(), 60)
                back.clear()
                assert device.restarts == restarts
                resource.setrlimit(resource.RLIMIT_NOFILE, pool.limits)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, pool.limits)
            watch.close()
            pool.close()


def test_a_device_is_pinged_again_after_one_that_was_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting for its end takes a descriptor, which may be missing at that moment."""
    asyncio.run(_pinged_again(monkeypatch))


def _is_back(device: Device, restarts: int) -> bool:
    return device.state is DeviceState.READY and device.restarts == restarts


async def _pinged_again(patch: pytest.MonkeyPatch) -> None:
    # Neither the thread that pings nor the event loop has one.
    pool, lacks, opened = DaemonPool(4, "devices"), [1, 2], os.pidfd_open

    def pidfd_open(pid: int) -> int:
        if lacks:
            lacks.pop()
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(pid)

    manager = DeviceManager("cpu:24-24", ping_timeout=0.5)
    with manager.get_device() as device:
        watch = DeviceWatch(device, asyncio.get_running_loop(), pool)
        patch.setattr(os, "pidfd_open", pidfd_open)
        try:
            for restarts in (1, 2):
                assert device.pid is not None
                os.kill(device.pid, signal.SIGSTOP)
                await until(partial(_is_back, device, restarts))
        finally:
            watch.close()
            pool.close()
