"""`JoinedDevice`: a device of another process, which lets this process join.

The owner passes a socket (`Device.invite`), the door. Each call to the device process
sends a new socket through the door, as an owner's call connects to the address. A
joined process has a link, and channels to replicas that the owner has loaded. The
device process refuses to load, unload or stop anything for a joined process. When the
joined process ends, its channels are freed, and other processes are not affected.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence

from engine.devices.connection import DeviceConnection
from engine.devices.device_state import DeviceState
from engine.devices.linked_device import LinkedDevice
from engine.errors import DeviceFailed, DeviceLost, EngineError, ExecutionFailed
from engine.run_failures import too_long
from engine.transport import control
from engine.transport.control import A
from engine.transport.device_messages import Connect
from engine.transport.held_socket import HeldSocket
from engine.transport.messages import Message, close_all, send

logger = logging.getLogger(__name__)

#: Seconds that the device process may take to answer. It answers most messages while it
#: runs programs, but opens channels only between two batches.
ANSWER_TIMEOUT = 60.0


class JoinedDevice(LinkedDevice):
    """A device process that another process owns, joined through `door`. This object
    owns `door`.

    `device_id` is the owner's name of the device. Make this object in a thread, because
    it waits for the process. It stays LOST after the process has died. The owner
    restarts the device and invites again. Thread-safe. Close it to leave the device.
    """

    def __init__(self, device_id: str, door: socket.socket) -> None:
        """Raise DeviceLost if the process has died."""
        super().__init__(device_id, spin_us=0)
        self.ping_timeout = ANSWER_TIMEOUT
        self._on_lost: list[Callable[[JoinedDevice], None]] = []
        self._why = "its process died"
        try:
            self._door = HeldSocket(door.detach())
        except BaseException:
            os.close(self._result_fd)
            raise
        try:
            self.connect(DeviceConnection(self._dial(), self._result_fd))
        except BaseException:
            self.close()
            raise

    # -- talking to the process

    def call(
        self,
        message: Message,
        kind: type[A],
        fds: Sequence[int] = (),
        timeout: float | None = None,
    ) -> A:
        self.fork_guard.check("JoinedDevice")
        self.refuse_if_closed()
        with self._dial(timeout) as sock:
            answer, answer_fds = control.ask(sock, message, kind, fds)
        close_all(answer_fds)
        return answer

    def _dial(self, timeout: float | None = None) -> HeldSocket:
        """Open a connection to the process."""
        mine, theirs = HeldSocket.pair()
        try:
            mine.settimeout(timeout or ANSWER_TIMEOUT)
            send(self._door, Connect(), [theirs.fileno()])
        except OSError as error:
            mine.close()
            raise self._loss() from error
        finally:
            theirs.close()
        return mine

    def check_responsive(self) -> bool:
        """Return whether the process lives. Only its owner checks that it answers."""
        return self.check()

    # -- ending

    def on_lost(self, callback: Callable[[JoinedDevice], None]) -> None:
        """Call back when the process dies, in the thread that notices."""
        self._on_lost.append(callback)

    def want(self) -> DeviceLost:
        return self._loss()

    def _loss(self) -> DeviceLost:
        return DeviceLost(f"device {self.id} was lost: {self._why}")

    def lose(self) -> None:
        with contextlib.ExitStack() as ends, self.lock:
            connection = self._connection
            if self.state is not DeviceState.READY or connection is None:
                return
            self.state = DeviceState.LOST
            for callback in reversed(self._on_lost):
                ends.callback(callback, self)
            ends.callback(self.blocking.notify)
            fault = connection.fault_report()
            error: EngineError = self._loss()
            if fault is not None:
                self._why = str(fault)
                error = DeviceFailed(f"device {self.id} failed: {fault}", fault)
            ends.callback(self.channels.hand_over)
            # The owner ends the process of an unloaded Python model.
            level = logging.WARNING if self.channels.all else logging.DEBUG
            ends.callback(logger.log, level, "%s", error)
            ends.callback(self._fail_all, error)
            self._fail_overlong()

    def _fail_overlong(self) -> None:
        """Fail the requests of the present run if it has taken too long, because its
        owner then ends the process. The caller holds the lock.
        """
        self.poll()  # take the results that came before
        now = time.monotonic_ns()
        for channel in self.channels.all:
            since, limit = self.report.since(channel.replica), channel.run_timeout
            if since and limit and now - since > limit * 1e9:
                for request in channel.started:
                    channel.abandon(request, ExecutionFailed(too_long(limit)))

    def close(self) -> None:
        """Leave the device. Requests in flight fail, and the process frees the
        channels.
        """
        with self.lock:
            if self.state is DeviceState.CLOSED:
                return
            self.state = DeviceState.CLOSED
        if not self.fork_guard.left:
            for channel in self.channels.all:
                channel.close()
        self.channels.by_number.clear()
        self._drop_link(closes=True)
        self._door.close()

    def __enter__(self) -> JoinedDevice:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<JoinedDevice {self.id} {self.state.value}, {self.in_flight} in flight>"
        )
