"""`ServiceManager`: reports the server's state to systemd or another service manager.

The protocol is sd_notify's: datagrams of lines to the Unix socket that NOTIFY_SOCKET
names. Without that variable this module does nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from app.gateway import Gateway

#: Seconds between checks of the server's state.
LOOK = 1.0
#: The most bytes of a status, which the manager shows in one line.
_LONGEST = 500


class ServiceState(NamedTuple):
    """State of the server: whether it is ready, and one line about it."""

    ready: bool
    status: str


class ServiceManager:
    """The process that started this one and waits for its messages, if there is one.

    All methods but the first are for the event loop's thread. `stopping` may also be
    called from a signal handler. The event loop sends the messages, so the manager
    restarts a server whose event loop hangs.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Remove the variables from `environ`: child processes must not see them."""
        name = environ.pop("NOTIFY_SOCKET", "")
        interval = environ.pop("WATCHDOG_USEC", "")
        watched = environ.pop("WATCHDOG_PID", "") or str(os.getpid())
        #: An abstract name begins with a zero byte.
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._watchdog = 0.0
        if interval.isascii() and interval.isdigit() and watched == str(os.getpid()):
            self._watchdog = int(interval) / 1e6
        self._socket: socket.socket | None = None
        if name.startswith(("/", "@")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self._look: Callable[[], ServiceState] = lambda: ServiceState(False, "")
        self._status = ""
        self._is_ready = False
        self._is_stopping = False

    def begin(self, look: Callable[[], ServiceState]) -> None:
        """Send READY once `look` reports it, and the status whenever it changes.

        Send WATCHDOG twice in the interval that the manager requests.
        """
        if self._socket is not None:
            self._look = look
            self._tick()

    def look(self) -> None:
        """Send the changes."""
        if self._socket is None:
            return
        state = self._look()
        text = " ".join(state.status.split()).encode()[:_LONGEST]
        status = text.decode(errors="ignore")
        lines = [] if status == self._status else [f"STATUS={status}"]
        becomes_ready = state.ready and not (self._is_ready or self._is_stopping)
        if becomes_ready:
            lines.append("READY=1")
        if lines and self._send(*lines):
            self._status = status
            self._is_ready |= becomes_ready

    def stopping(self) -> None:
        """Send that the server shuts down."""
        if not self._is_stopping:
            self._is_stopping = True
            self._send("STOPPING=1")

    def reloading(self) -> None:
        """Send that the server reads its files again, until `reloaded`."""
        if self._is_ready and not self._is_stopping:
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._send("RELOADING=1", f"MONOTONIC_USEC={now}")

    def reloaded(self) -> None:
        """Send that the server has read its files again."""
        if self._is_ready and not self._is_stopping:
            self._is_ready = False  # sent again until the manager has it
            self.look()

    def close(self) -> None:
        """Send nothing any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tick(self) -> None:
        # An error below is logged and does not stop the messages.
        pause = min(LOOK, self._watchdog / 2) if self._watchdog else LOOK
        asyncio.get_running_loop().call_later(pause, self._tick)
        if self._watchdog:
            self._send("WATCHDOG=1")
        self.look()

    def _send(self, *lines: str) -> bool:
        """Return whether the manager has received the lines.

        A manager that is busy or gone must not block the server or fail it.
        """
        if self._socket is None:
            return False
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True

    def __repr__(self) -> str:
        return f"<ServiceManager at {self._address!r}>"


def state_of(gateway: Gateway) -> ServiceState:
    """Return the readiness, and the number of loaded models."""
    readiness = gateway.readiness()
    models = gateway.records.all()
    loaded = sum(record.default is not None for record in models)
    counts = f"{loaded} of {len(models)} models loaded"
    return ServiceState(readiness.ready, "; ".join([counts, *readiness.reasons]))
