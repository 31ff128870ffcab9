"""Sockets that no forked child keeps (engine/fork_guard.py)."""

from __future__ import annotations

import socket

from engine.fork_guard import fork_guard, hold, let_go, no_fork


class HeldSocket(socket.socket):
    """A Unix socket with message borders. In a forked child it leads nowhere."""

    def __init__(self, fileno: int | None = None) -> None:
        """Make a new socket, or take over an open descriptor."""
        with no_fork():
            self._fork_guard = fork_guard()
            super().__init__(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fileno)
            hold(self.fileno())

    @classmethod
    def pair(cls) -> tuple[HeldSocket, HeldSocket]:
        """Return two connected sockets."""
        with no_fork():
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            return cls(one.detach()), cls(other.detach())

    def close(self) -> None:
        """Close the socket. May be called again."""
        with no_fork():
            let_go(self.fileno())
            super().close()

    def __del__(self) -> None:
        if self._fork_guard.left:  # close the child's copy silently
            self.close()
        # A finalizer must not wait. It runs in whichever thread collects garbage, and
        # the holder of the lock may be waiting for that thread. Without the lock, a
        # child that is forked at this moment may keep the descriptor, which does no
        # other harm.
        lock = no_fork()
        is_held = lock.acquire(blocking=False)
        try:
            let_go(self.fileno())
            super().__del__()  # type: ignore[misc] # closes it, and warns of that
        finally:
            if is_held:
                lock.release()
