"""Objects that a client process shares with a living device process."""

from __future__ import annotations

import os
import socket

from engine.errors import DeviceLost
from engine.faults import DeviceFault
from engine.transport import control
from engine.transport.device_messages import FAULTS, Linked, LinkUp
from engine.transport.link import Link
from engine.transport.messages import close_all


class DeviceConnection:
    """The link, the eventfds and the control socket of one device process.

    `wake_fd` wakes the thread that runs programs. `cancel_fd` wakes the thread that
    ends runs whose requests are all cancelled. `sock` is only polled. It becomes
    readable when the process ends or reports the fault that ends it.
    """

    __slots__ = ("cancel_fd", "link", "number", "sock", "wake_fd")

    def __init__(
        self,
        sock: socket.socket,
        result_fd: int,
        liveness: control.LivenessCheck | None = None,
    ) -> None:
        """Link up with the process behind `sock`. The process writes to `result_fd`.
        This object owns `sock`, which has a timeout, and closes it.

        Raises DeviceLost if it does not answer in time, and the errors of `liveness`.
        """
        self.link = link = Link.create()
        self.sock = sock
        try:
            fds = [link.memory.fd, result_fd]
            answer, eventfds = control.ask(self.sock, LinkUp(), Linked, fds, liveness)
        except BaseException as error:
            self.sock.close()
            link.close()
            if isinstance(error, TimeoutError):
                raise DeviceLost("the device process did not start") from error
            raise
        link.memory.detach_fd()
        # With a timeout set, even a poll would wait.
        self.sock.settimeout(None)
        self.number = answer.link
        self.wake_fd, self.cancel_fd = eventfds

    def wake(self) -> None:
        os.eventfd_write(self.wake_fd, 1)

    def notify_cancelled(self) -> None:
        os.eventfd_write(self.cancel_fd, 1)

    @property
    def process_is_gone(self) -> bool:
        """Return whether the process has ended, or has reported a fault and will end
        (`fault_report`).
        """
        try:
            self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def fault_report(self) -> DeviceFault | None:
        """Return the fault that the process reported before it ended, if any. Only the
        first call returns it. Never blocks.
        """
        self.sock.setblocking(False)
        try:
            message, fds = FAULTS.receive(self.sock)
            close_all(fds)
            return message.fault
        except (OSError, EOFError, ValueError):
            return None

    def close(self) -> None:
        self.sock.close()
        self.link.close()
        os.close(self.wake_fd)
        os.close(self.cancel_fd)

    def __repr__(self) -> str:
        return f"<DeviceConnection {self.number} {self.link!r}>"
