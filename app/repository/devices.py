"""The devices of a gateway: attached at start, driven by its event loop, restarted
after a loss.

A device needs an owner that drives it (`Device.poll`), that notices the death of its
process (`Device.check`), and that restarts a lost one (`Device.recover`, which blocks).
Here the owner is the event loop, with a thread for blocking calls. Late requests are
failed elsewhere (app/serving/deadlines.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from app.background import DaemonPool
from app.settings import Settings
from app.sizes import counted
from engine import (
    Device,
    DeviceClosed,
    DeviceManager,
    DeviceState,
    EngineError,
    InvalidConfig,
    PythonOptions,
    ThreadPlan,
)

logger = logging.getLogger(__name__)

# Seconds between checks of running batches.
RUN_INTERVAL = 0.5
# The longest pause in seconds before a failing device is tried again, if requests need
# it.
WANTED_PAUSE = 1.0
# Seconds to wait for a call in the event loop. Such a call never takes long.
LOOP_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """An attached device as the API describes it.

    `restarts` counts its losses, and `lost_by` is the reason of the last. `back_off` is
    the number of seconds between two attempts to start it, 0 after a success. `busy_ns`
    is the time for which it has run models.
    """

    id: str
    state: str
    pid: int | None
    threads: int
    models: int
    in_flight: int
    restarts: int
    lost_by: str | None
    back_off: float
    busy_ns: int


class GatewayDevices:
    """All devices of one gateway.

    `attach` blocks and is for a thread; everything else belongs to the event loop's.
    """

    def __init__(
        self,
        settings: Settings,
        pool: DaemonPool,
        *,
        on_back: Callable[[], None] = lambda: None,
        in_flight_elsewhere: Callable[[Device], int] = lambda device: 0,
    ) -> None:
        """Make the pool; a core is left to each process that feeds the devices.

        `on_back` is called when a lost device is back, with its models.
        `in_flight_elsewhere` returns how many requests other processes have in flight
        on a device.

        Raises `engine.InvalidConfig` for a specification it cannot read.
        """
        self._manager = DeviceManager(
            settings.devices,
            overcommit=True,
            reserve_cores=settings.workers,
            threads=settings.threads or 0,
            ping_timeout=settings.device_timeout,
        )
        self._take_all = settings.devices is not None
        self._wait = settings.device_wait_config
        self._pool = pool
        self._watches: list[DeviceWatch] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        #: The devices of Python models, which exist as long as the models.
        self._python: dict[Device, DeviceWatch] = {}
        #: Devices that are no longer driven and must be closed.
        self._ended: list[Device] = []
        if not self._manager.graph_units:
            raise InvalidConfig(
                f"devices {settings.devices!r} run Python models only; add a device "
                "that runs graphs, as in cpu:1"
            )
        self._devices: list[Device] = []
        self._next = 0
        self._on_back = on_back
        self._in_flight_elsewhere = in_flight_elsewhere

    @property
    def plan(self) -> ThreadPlan:
        """Return how the cores are shared."""
        return self._manager.plan

    def attach(self) -> None:
        """Attach the named devices, or one free one; wait as configured.

        Raises `engine.NoDeviceAvailable` or `engine.DeviceWaitTimeout`, after releasing
        the devices that it attached.
        """
        devices: list[Device] = []
        try:
            if self._take_all:
                devices.extend(
                    self._manager.get_specific_device(unit, self._wait)
                    for unit in self._manager.graph_units
                )
            else:
                devices.append(self._manager.get_device(1, self._wait))
        except BaseException:
            for device in devices:
                device.close()
            raise
        self._devices = devices

    def watch(self) -> None:
        """Let the running event loop drive the attached devices from now on."""
        self._loop = loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._watches = [
            DeviceWatch(d, loop, self._pool, self._on_back) for d in self._devices
        ]

    def place(self, instances: int, wanted: Sequence[int]) -> dict[int, Device]:
        """Return a device for each instance: the wanted ones in turn, or all in turn.

        Raises ValueError for an index that is not attached.
        """
        have = len(self._devices)
        if wanted and max(wanted) >= have:
            raise ValueError(
                f"devices = {list(wanted)} needs "
                f"{counted(max(wanted) + 1, 'device')}, but {have} "
                f"{'is' if have == 1 else 'are'} attached (--devices)"
            )
        if wanted:
            return {i: self._devices[wanted[i % len(wanted)]] for i in range(instances)}
        first, self._next = self._next, (self._next + instances) % have
        return {i: self._devices[(first + i) % have] for i in range(instances)}

    def start_python(self, options: PythonOptions, count: int) -> list[Device]:
        """Start `count` processes of one Python model, driven by the event loop until
        they are closed.

        For a thread; blocks. Raises as `create_python_device` does.
        """
        devices: list[Device] = []
        try:
            for _ in range(count):
                device = self._manager.create_python_device(options)
                devices.append(device)
                self._in_loop(partial(self._drive, device))
        except BaseException:
            for device in devices:
                device.close()
            raise
        return devices

    def _drive(self, device: Device) -> None:
        assert self._loop is not None
        watch = DeviceWatch(device, self._loop, self._pool, self._on_back)
        self._python[device] = watch
        device.on_close(self._release)

    def _release(self, device: Device) -> None:
        """Stop watching a device's descriptors before it is closed, in any thread."""
        if device in self._python:
            with contextlib.suppress(DeviceClosed):
                self._in_loop(partial(self._stop_driving, device))

    def _stop_driving(self, device: Device) -> None:
        watch = self._python.pop(device, None)
        if watch is not None:
            watch.close()

    def _in_loop(self, call: Callable[[], None]) -> None:
        """Run `call` in the event loop's thread, and wait."""
        loop = self._loop
        if loop is None or loop.is_closed():
            raise DeviceClosed("the gateway has shut down")
        if threading.get_ident() == self._loop_thread:
            call()
            return

        async def task() -> None:
            call()

        asyncio.run_coroutine_threadsafe(task(), loop).result(LOOP_TIMEOUT)

    def bring_back(self, devices: Collection[Device]) -> None:
        """Restart the lost devices, with their models. For a thread; blocks.

        Raises the error that prevented the restart.
        """
        for watch in self._watches:
            if watch.device in devices:
                watch.bring_back()

    def count_for(self, instances: int, wanted: Sequence[int]) -> int:
        """Return how many devices `place` would use."""
        return min(instances, len(wanted) or len(self._devices))

    def summaries(self) -> list[DeviceSummary]:
        return [
            DeviceSummary(
                d.id,
                d.state.value,
                d.pid,
                d.threads,
                len(d.models.users),
                d.in_flight + self._in_flight_elsewhere(d),
                d.restarts,
                d.lost_by,
                d.back_off,
                d.report.busy_ns,
            )
            for d in (*self._devices, *self._python)
        ]

    def unwatch(self) -> None:
        """Stop driving; nothing is resolved after this."""
        for watch in self._watches:
            watch.close()
        self._watches = []
        self._ended = list(self._python)
        for device in self._ended:
            self._stop_driving(device)

    def close(self) -> None:
        """Detach all devices: their processes end. Blocks for up to seconds."""
        for device in (*self._devices, *self._ended, *self._python):
            device.close()

    def __repr__(self) -> str:
        return f"<GatewayDevices {', '.join(d.id for d in self._devices) or 'none'}>"


class DeviceWatch:
    """One device on the event loop.

    A device that does not answer a ping within its `ping_timeout` hangs. It is killed,
    its requests fail, and it is started again. A long batch or load does not count as
    hanging, because the device answers pings meanwhile.
    """

    def __init__(
        self,
        device: Device,
        loop: asyncio.AbstractEventLoop,
        pool: DaemonPool,
        on_back: Callable[[], None] = lambda: None,
    ) -> None:
        self.device = device
        self._on_back = on_back
        self._loop = loop
        self._pool = pool
        self._recovery: asyncio.Task[None] | None = None
        self._resumption: asyncio.Task[None] | None = None
        self._lost_fd = -1
        self._result_fd = device.fileno()
        device.adopt()
        self._wanted = asyncio.Event()
        device.on_lost(self._lost)
        device.on_wanted(self._want)
        loop.add_reader(self._result_fd, device.poll)
        self._watch_life()
        self._pings: asyncio.Task[None] | None = None
        if device.ping_timeout > 0:
            self._pings = loop.create_task(self._ping(device.ping_timeout))
        self._looks = loop.create_task(self._look_at_runs())

    def bring_back(self) -> None:
        """Restart the device if it is lost, noticed or not. For a thread; blocks."""
        asyncio.run_coroutine_threadsafe(self._notice(), self._loop).result()
        self.device.recover()
        if self.device.state is not DeviceState.READY:
            raise self.device.process.loss()

    async def _notice(self) -> None:
        if self._lost_fd >= 0:
            self._check()

    def close(self) -> None:
        self._loop.remove_reader(self._result_fd)
        self._forget_life()
        for task in (self._recovery, self._resumption, self._pings, self._looks):
            if task is not None:
                task.cancel()

    async def _ping(self, ping_timeout: float) -> None:
        device = self.device
        while True:
            await asyncio.sleep(ping_timeout / 2)
            if device.state is DeviceState.READY:
                with contextlib.suppress(EngineError, OSError):
                    await self._pool.run(device.check_responsive)

    async def _look_at_runs(self) -> None:
        """End runs that exceed their time limit.

        Load models again after their pause.
        """
        device = self.device
        while True:
            await asyncio.sleep(RUN_INTERVAL)
            if self._lost_fd < 0 and (self._recovery is None or self._recovery.done()):
                self._watch_life()
            if device.models.is_to_resume and (
                self._resumption is None or self._resumption.done()
            ):
                self._resumption = self._loop.create_task(self._resume())
            if device.state is not DeviceState.READY or not device.limits.is_running:
                continue
            with contextlib.suppress(EngineError, OSError):
                call = device.limits.judge(await self._pool.run(device.ping))
                if call is not None:
                    await self._pool.run(call)

    async def _resume(self) -> None:
        with contextlib.suppress(EngineError, OSError):
            await self._pool.run(self.device.models.resume)
            self._on_back()

    def _watch_life(self) -> None:
        with self.device.lock:
            fd = self.device.lost_fileno()
            if fd < 0:
                return
            # Duplicate the descriptor. Other code may close the device's own first, and
            # a new connection may then get the same number.
            try:
                self._lost_fd = os.dup(fd)
            except OSError:  # no descriptor is left: `_look_at_runs` tries again
                return
        self._loop.add_reader(self._lost_fd, self._check)

    def _forget_life(self) -> None:
        fd, self._lost_fd = self._lost_fd, -1
        if fd >= 0:
            self._loop.remove_reader(fd)
            os.close(fd)

    def _check(self) -> None:
        self._forget_life()
        if self.device.check():
            self._watch_life()

    def _lost(self, device: Device) -> None:
        """Handle the loss of a device. Called by the device, in any thread."""
        self._loop.call_soon_threadsafe(self._begin_recovery)

    def _want(self) -> None:
        """Handle a request that a lost device refuses. Called by the device, in the
        request's thread.
        """
        if not self._wanted.is_set():
            self._loop.call_soon_threadsafe(self._wanted.set)

    def _begin_recovery(self) -> None:
        self._forget_life()
        if self._recovery is None or self._recovery.done():
            self._recovery = self._loop.create_task(self._recover())

    async def _recover(self) -> None:
        device = self.device
        while device.state is DeviceState.LOST:
            await self._pause(device.back_off)
            logger.info("device %s: restarting it", device.id)
            try:
                await self._pool.run(device.recover)
            except Exception as e:  # the device has to come back
                logger.error("device %s cannot be restarted: %s", device.id, e)
                self._give_up_half_loaded()
        if device.state is DeviceState.READY:
            self._watch_life()
            logger.info("device %s is back, process %s", device.id, device.pid)
            self._on_back()

    async def _pause(self, seconds: float) -> None:
        """Pause before the next attempt. The pause is short if a request has needed the
        device since the last pause.
        """
        await asyncio.sleep(min(seconds, WANTED_PAUSE))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds - WANTED_PAUSE)):
                await self._wanted.wait()
        self._wanted.clear()

    def _give_up_half_loaded(self) -> None:
        """Replace a process that lives without all its models."""
        if self.device.state is DeviceState.READY and self.device.check():
            self.device.kill("its models could not be loaded again")
