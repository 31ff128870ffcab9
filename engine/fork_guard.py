"""`ForkGuard`: only the process that made an object may use it.

A child made by `fork` has a copy of every object of its parent, and with it the same
shared memory, sockets and claims on devices. Two processes would write the same rings,
each would take the other's results, and a device would stay attached as long as any
child lives. So objects made before a fork cannot be used in the child, and the child
keeps no object that holds a device.

Every object that reaches a device, or waits for another thread, keeps the `ForkGuard`
of its process. In a child, `left` is True. Methods check it before they take any lock,
because a lock that another thread of the parent held stays locked in the child for
ever. The fork itself sets `left`, so a request only reads one attribute.

`hold` registers descriptors that hold a device. A child redirects each of them at once,
so the kernel sees them closed when the parent ends. The descriptors keep their numbers,
so copies of their owners may close them without closing another file. They are made and
closed within `no_fork`, for which a forking thread waits. So no child has an
unregistered descriptor.
"""

from __future__ import annotations

import os
import threading

from engine.errors import WrongProcess


class ForkGuard:
    """Guards the objects of one process. Each process has one: `fork_guard`."""

    __slots__ = ("left", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        #: Whether this process is a forked child of the one that made the object.
        self.left = False

    def error(self, what: str) -> WrongProcess:
        """Return the error for a use of `what`, which the parent process made."""
        return WrongProcess(
            f"this {what} was made in process {self.pid}; process {os.getpid()}, "
            "which was forked from it, must make its own"
        )

    def check(self, what: str) -> None:
        """Raise WrongProcess unless this process made the object."""
        if self.left:
            raise self.error(what)

    def __repr__(self) -> str:
        return f"<ForkGuard {self.pid}{', left' if self.left else ''}>"


_guard = ForkGuard()
_held: set[int] = set()
# Re-entrant, because a finalizer may close a descriptor while the same thread makes
# one.
_fork_lock = threading.RLock()


def fork_guard() -> ForkGuard:
    """Return the `ForkGuard` of this process."""
    return _guard


def no_fork() -> threading.RLock:
    """Return the lock that keeps other threads from forking by `os.fork` and similar
    calls.
    """
    return _fork_lock


def hold(fd: int) -> None:
    """Keep forked children from inheriting this descriptor. Call it in the same
    `no_fork` block as the code that makes the descriptor.
    """
    _held.add(fd)


def let_go(fd: int) -> None:
    """Forget a descriptor that is about to be closed. Call it in the same `no_fork`
    block as the code that closes the descriptor.
    """
    _held.discard(fd)


def _before() -> None:
    _fork_lock.acquire()


def _in_parent() -> None:
    _fork_lock.release()


def _in_child() -> None:
    global _guard, _held, _fork_lock
    _fork_lock = threading.RLock()
    _guard.left = True
    _guard = ForkGuard()
    held, _held = _held, set()
    if held:
        nowhere = os.eventfd(0, os.EFD_CLOEXEC)
        for fd in held:
            os.dup2(nowhere, fd, inheritable=False)
        os.close(nowhere)


os.register_at_fork(
    before=_before, after_in_parent=_in_parent, after_in_child=_in_child
)
