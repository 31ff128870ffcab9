"""`Announcements`: the changes of models that a worker must hear of and apply."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Iterable, Sequence

from app.serving.feeders import FeedingProcess
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
#: Seconds until a change is sent again whose device did not answer, or for which the
#: worker had no descriptors.
_AGAIN = 1.0
#: The most characters of the reason for which a model failed that a worker is sent.
_MOST_WHY = 1000


class Announcements(FeedingProcess):
    """The models and devices that one process of a worker was told of.

    `sock` leads to the worker. It belongs to the `WorkerProcess`, and so does this
    object, which lives as long as the process.
    """

    def __init__(self, published: Publication, sock: socket.socket) -> None:
        super().__init__()
        self._published = published
        self._sock = sock
        #: Models whose changes must be sent, in this order.
        self._due: dict[str, None] = dict.fromkeys(published.names())
        self._sending = self._has_ended = False
        self._unacknowledged: set[int] = set()
        self._sequence = itertools.count(1)
        self._wanted = asyncio.Event()
        self._wanted.set()

    def try_send(self, message: ToWorker, fds: Sequence[int] = ()) -> bool:
        """Send a message if the socket has room. Return whether it was sent."""
        try:
            send_message(self._sock, message, fds, MOST)
        except OSError:
            return False
        except MessageTooLong as error:
            logger.error("a worker cannot be told: %s", error)
            return False
        return True

    async def _send(self, message: ToWorker, fds: Sequence[int] = ()) -> None:
        """Send a message, and wait while the socket has no room. Raises
        MessageTooLong."""
        while True:
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
        if not self._has_ended:
            self._due[name] = None
            self._wanted.set()

    def not_joined(self, key: str) -> None:
        """Let the worker try again soon to join a device and to run all models."""
        asyncio.get_running_loop().call_later(_AGAIN, self._try_again, key)

    def _try_again(self, key: str) -> None:
        self._joined.discard(key)
        for name in self._published.names():
            self.mark(name)

    @property
    def is_behind(self) -> bool:
        """Return whether the worker still has changes to apply."""
        return bool(self._due or self._sending or self._unacknowledged)

    def switched(self, sequence: int) -> None:
        """Note that the worker has applied a change."""
        self._unacknowledged.discard(sequence)
        self._news.set()

    def process_ended(self) -> None:
        self._due.clear()
        self._unacknowledged.clear()
        self._sending, self._has_ended = False, True
        super().process_ended()

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
                except Exception:  # the worker has to hear of the other changes
                    logger.exception("cannot tell a worker of model %s", name)
                finally:
                    self._sending = False
                    self._news.set()

    async def _tell_model(self, name: str) -> None:
        entries: list[SharedEntry] = []
        runners: dict[int, object] = {}
        for entry, runner in self._published.entries_of(name):
            try:
                await self._invite(runner.devices)
            except EngineError as error:  # sent again when the device is back
                logger.debug("model %s: %s", name, error)
                continue
            except OSError as error:  # the device hangs, or descriptors are short
                logger.warning("model %s runs in the supervisor: %s", name, error)
                asyncio.get_running_loop().call_later(_AGAIN, self.mark, name)
                continue
            entries.append(entry)
            runners[entry.key] = runner
        message = self._model_message(name, entries)
        new = runners.keys() - self.held.keys()
        self.held |= runners
        try:
            await self._send_model(message)
        except MessageTooLong:
            logger.info(
                "model %s runs in the supervisor: its description exceeds the message "
                "limit",
                name,
            )
            for key in new:
                del self.held[key]
            await self._send_model(self._model_message(name, ()))

    async def _send_model(self, message: ModelChanged) -> None:
        # The answer arrives quickly, so it is expected before the message is sent.
        self._unacknowledged.add(message.seq)
        try:
            await self._send(message)
        except MessageTooLong:
            self._unacknowledged.discard(message.seq)
            raise

    def _model_message(self, name: str, entries: Iterable[SharedEntry]) -> ModelChanged:
        failed = (
            (key, str(runner.failure)[:_MOST_WHY])
            for key, runner in self.held.items()
            if isinstance(runner, ModelRunner) and runner.failure is not None
        )
        return ModelChanged(
            next(self._sequence),
            name,
            self._published.default_of(name),
            tuple(entries),
            tuple(failed),
        )

    async def _invite(self, devices: Iterable[Device]) -> None:
        async with self.doors(devices) as doors:
            for (key, device_id), fd in doors.items():
                number = self._published.device_number(device_id)
                await self._send(JoinDevice(key, device_id, number), [fd])

    def __repr__(self) -> str:
        return f"<Announcements, {len(self._due)} due, {len(self.held)} runners held>"
