"""`Announcements`: the changes of models that a worker must hear of and apply."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Callable, Iterable, Sequence

from engine import Device, EngineError, MessageTooLong, ModelRunner, send_message
from popgate_workers.messages import (
    MOST,
    JoinDevice,
    ModelChanged,
    SharedEntry,
    ToWorker,
)
from popgate_workers.publication import Publication

logger = logging.getLogger(__name__)

#: Seconds between attempts to send a message to a worker that does not read.
_FULL_TICK = 0.02


class Announcements:
    """The models and devices that one process of a worker was told of.

    `sock` leads to the worker. It belongs to the `WorkerProcess`, and so does this
    object, which lives as long as the process. `held` are the keys of the runners that
    the worker has, or was told to run.
    """

    def __init__(self, published: Publication, sock: socket.socket) -> None:
        self._published = published
        self._sock = sock
        self._is_over = False
        self.held: set[int] = set()
        #: Devices that the worker was invited to.
        self._devices: set[str] = set()
        #: Models whose changes must be sent, in this order.
        self._due: dict[str, None] = dict.fromkeys(published.names())
        self._sending = False
        self._unacknowledged: set[int] = set()
        self._sequence = itertools.count(1)
        self._news = asyncio.Event()
        self._wanted = asyncio.Event()
        self._wanted.set()

    def tell(self, message: ToWorker, fds: Sequence[int] = ()) -> bool:
        """Send a message if the socket has room. Return whether it was sent."""
        with contextlib.suppress(OSError):
            send_message(self._sock, message, fds, MOST)
            return True
        return False

    async def _send(self, message: ToWorker, fds: Sequence[int] = ()) -> None:
        """Send a message, and wait while the socket has no room. Raises
        MessageTooLong."""
        while not self._is_over:
            try:
                send_message(self._sock, message, fds, MOST)
            except BlockingIOError:
                await asyncio.sleep(_FULL_TICK)
                continue
            except OSError:  # it has just died
                pass
            return

    def mark(self, name: str) -> None:
        """Mark a model as changed."""
        self._due[name] = None
        self._wanted.set()

    @property
    def is_behind(self) -> bool:
        """Return whether the worker still has changes to apply."""
        return bool(self._due or self._sending or self._unacknowledged)

    async def until(self, condition: Callable[[Announcements], bool]) -> None:
        """Wait for a condition, or for the end of the process."""
        while not self._is_over and not condition(self):
            await self._news.wait()

    def switched(self, sequence: int) -> None:
        """Note that the worker has applied a change."""
        self._unacknowledged.discard(sequence)
        self._tell_news()

    def left(self, key: int) -> None:
        """Note that the worker has released a runner."""
        self.held.discard(key)
        self._tell_news()

    def end(self) -> None:
        """Note that the process has ended. It holds nothing, and owes nothing."""
        self._is_over = True
        self.held.clear()
        self._due.clear()
        self._unacknowledged.clear()
        self._sending = False
        self._tell_news()

    def _tell_news(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def send_all(self) -> None:
        """Send the changes as they come, until this task is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._due:
                name = next(iter(self._due))
                del self._due[name]
                self._sending = True
                try:
                    await self._tell_model(name)
                finally:
                    self._sending = False
                    self._tell_news()

    async def _tell_model(self, name: str) -> None:
        entries = []
        for entry, runner in self._published.entries_of(name):
            try:
                for device in dict.fromkeys(runner.devices):
                    await self._invite(device)
            except EngineError as error:  # sent again when the device is back
                logger.debug("model %s: %s", name, error)
                continue
            entries.append(entry)
        message = self._model_message(name, entries)
        new = self._expect(message)
        try:
            await self._send(message)
        except MessageTooLong:
            logger.info(
                "model %s runs in the supervisor: its description exceeds the message "
                "limit",
                name,
            )
            self.held -= new
            self._unacknowledged.discard(message.seq)
            message = self._model_message(name, ())
            self._expect(message)
            await self._send(message)

    def _expect(self, message: ModelChanged) -> set[int]:
        """Expect an answer, and return the new keys.

        This comes before the message is sent, because the answer arrives quickly.
        """
        new = {entry.key for entry in message.entries} - self.held
        self.held |= new
        self._unacknowledged.add(message.seq)
        return new

    def _model_message(self, name: str, entries: Iterable[SharedEntry]) -> ModelChanged:
        failed: list[tuple[int, str]] = []
        for key in self.held:
            runner = self._published.runner_of(name, key)
            if isinstance(runner, ModelRunner) and runner.failure is not None:
                failed.append((key, str(runner.failure)))
        return ModelChanged(
            next(self._sequence),
            name,
            self._published.default_of(name),
            tuple(entries),
            tuple(failed),
        )

    async def _invite(self, device: Device) -> None:
        """Let it join a device, unless it has joined the device's present process."""
        key = self._published.device_key(device)
        if key in self._devices:
            return
        door = await asyncio.to_thread(device.invite)
        with door:
            if self._published.device_key(device) != key:
                return  # the message is sent again
            number = self._published.device_number(device.id)
            await self._send(JoinDevice(key, device.id, number), [door.fileno()])
        self._devices.add(key)

    def __repr__(self) -> str:
        return f"<Announcements, {len(self._due)} due, {len(self.held)} runners held>"
