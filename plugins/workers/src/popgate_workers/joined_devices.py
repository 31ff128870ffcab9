"""`JoinedDevices`: the devices that a worker feeds, driven by its event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator

from app.serving.calls.parent_request import ParentRequest, parent_of
from engine import EngineError, JoinedDevice
from popgate_workers.messages import JoinDevice

logger = logging.getLogger(__name__)


class JoinedDevices:
    """The devices by key. `first` is called before results are taken, if it is set."""

    def __init__(self, first: Callable[[], None] | None) -> None:
        self._first = first
        self._devices: dict[str, _Joined] = {}

    async def join(
        self, message: JoinDevice, fd: int, on_lost: Callable[[], None]
    ) -> bool:
        """Join a device. `on_lost` is called when it has died. Return False if
        descriptors are short.
        """
        door, key = socket.socket(fileno=fd), message.key

        def lost() -> None:
            joined = self._devices.pop(key, None)
            on_lost()
            if joined is not None:
                joined.close()

        joined = _Joined(message.number, lost, self._first)
        self._devices[key] = joined
        try:
            await joined.open(message.id, door)
        except EngineError as error:  # another attempt will follow
            logger.debug("device %s: %s", key, error)
        except OSError as error:
            logger.warning("the supervisor alone uses device %s: %s", key, error)
            return False
        return True

    async def wait_for(self, key: str) -> None:
        """Return when an announced device has been joined or cannot be joined."""
        if key in self._devices:
            await self._devices[key].is_open.wait()

    def by_key(self) -> dict[str, JoinedDevice]:
        """Return the joined devices."""
        found = ((key, joined.device) for key, joined in self._devices.items())
        return {key: device for key, device in found if device is not None}

    def in_flight(self) -> Iterator[tuple[int, int]]:
        """Yield the number of each device, and how many requests it has in flight."""
        for joined in self._devices.values():
            if joined.device is not None:
                yield joined.number, joined.device.in_flight

    def parent(self, number: int) -> ParentRequest | None:
        """Return the request with this number, while it is in flight."""
        devices = self.by_key().values()
        requests = (d.channels.request_of(number) for d in devices)
        request = next(filter(None, requests), None)
        return None if request is None else parent_of(request.on_done)

    def client_requests(
        self, numbers: Iterable[int]
    ) -> list[tuple[int, str, str, str]]:
        """Return the clients of the requests with these numbers."""
        found = ((number, self.parent(number)) for number in numbers)
        clients = (
            (number, one.client_request()) for number, one in found if one is not None
        )
        return [(number, *one) for number, one in clients if not isinstance(one, int)]

    def close(self) -> None:
        """Leave all devices; requests in flight fail."""
        for joined in self._devices.values():
            joined.close()
        self._devices.clear()


class _Joined:
    """A device that this process feeds, driven by its event loop."""

    def __init__(
        self,
        number: int,
        on_lost: Callable[[], None],
        first: Callable[[], None] | None = None,
    ) -> None:
        self.number = number
        self._first = first
        self.device: JoinedDevice | None = None
        #: Set once the device has been joined or cannot be joined.
        self.is_open = asyncio.Event()
        self._on_lost = on_lost
        self._lost_fd = -1

    async def open(self, device_id: str, door: socket.socket) -> None:
        """Join the device. Raises EngineError."""
        try:
            device = await asyncio.to_thread(JoinedDevice, device_id, door)
            device.adopt()
            device.on_lost(lambda _: self._on_lost())
            loop = asyncio.get_running_loop()
            # Duplicate the descriptor: the device closes its own when its process has
            # died.
            try:
                self._lost_fd = os.dup(device.lost_fileno())
            except OSError:
                device.close()
                raise
            loop.add_reader(device.fileno(), self._poll if self._first else device.poll)
            loop.add_reader(self._lost_fd, device.check)
            self.device = device
        finally:
            self.is_open.set()

    def _poll(self) -> None:
        if self._first is not None:
            self._first()
        if self.device is not None:  # unless it was lost meanwhile
            self.device.poll()

    def close(self) -> None:
        """Close; requests in flight fail."""
        device, self.device = self.device, None
        if device is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(device.fileno())
            loop.remove_reader(self._lost_fd)
            os.close(self._lost_fd)
            device.close()
