"""Results of routed calls for the coroutines of a Python model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator

from engine.devices.joined_device import JoinedDevice
from popgate_python_worker.calls.routes import RoutedCall


class LoopDriver:
    """Lets an event loop receive the results of routed calls. Only the loop's thread
    may use it.

    The loop belongs to the model's author and stops between the calls of the model. So
    this object watches a device only while a coroutine waits for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: For each device: the number of waiting calls, and a copy of the descriptor
        #: that becomes readable when the device is lost. The loss closes the device's
        #: own descriptor, but not the copy.
        self._devices: dict[JoinedDevice, tuple[int, int]] = {}

    @contextlib.contextmanager
    def driving(self, call: RoutedCall) -> Iterator[None]:
        """Drive routed calls while a coroutine waits for a call."""
        devices = call.route.devices
        for device in devices:
            self._watch(device)
        timer = None
        if call.request.deadline_ns:
            left = (call.request.deadline_ns - time.monotonic_ns()) / 1e9
            timer = self._loop.call_later(max(0.0, left), call.expire)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            for device in devices:
                self._forget(device)

    def _watch(self, device: JoinedDevice) -> None:
        count, lost = self._devices.get(device, (0, -1))
        if not count:
            self._loop.add_reader(device.fileno(), device.poll)
            with contextlib.suppress(OSError):  # the device is lost
                lost = os.dup(device.lost_fileno())
                self._loop.add_reader(lost, device.check)
            device.poll()  # take the results that are already there
        self._devices[device] = count + 1, lost

    def _forget(self, device: JoinedDevice) -> None:
        count, lost = self._devices.pop(device)
        if count > 1:
            self._devices[device] = count - 1, lost
            return
        self._loop.remove_reader(device.fileno())
        if lost >= 0:
            self._loop.remove_reader(lost)
            os.close(lost)

    def __repr__(self) -> str:
        return f"<LoopDriver {self._devices}>"
