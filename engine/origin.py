"""`Origin`: the process that something was made in, which alone may use it.

A child made by `fork` has a copy of every object of its parent, and with the copy the
very same shared memory, sockets and claims on devices. Two processes would write the
same rings, each would take the other's results, and a device would stay attached for as
long as any child lives. So nothing that was made before a fork can be used in the
child, and the child keeps nothing that holds a device.

Every object that reaches a device, or waits for another thread, keeps the `Origin` it
was made in; in a child of that process `left` is True. It is looked at before any lock
is taken: in the child, what a thread of the parent had locked stays locked for ever.
Requests pay for one attribute: that it changes is the fork's work, not theirs.

Descriptors that hold a device are told to `hold`. In a child each leads nowhere from
the first moment on, so that the kernel sees them gone when the parent goes. They keep
their numbers, which their copied owners may close as ever, without hitting a file that
has got the number since. They are made and closed within `no_fork`: a thread
that forks waits, and no child is born with a descriptor that is not registered.
"""

from __future__ import annotations

import os
import threading

from engine.errors import WrongProcess


class Origin:
    """One process; made once in each, see `here`."""

    __slots__ = ("left", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        #: Whether this is a child of that process, and not itself.
        self.left = False

    def error(self, what: str) -> WrongProcess:
        """Return the error for a use of `what`, which the parent process made."""
        return WrongProcess(
            f"this {what} was made in process {self.pid}; process {os.getpid()}, "
            "which was forked from it, must make its own"
        )

    def check(self, what: str) -> None:
        """Raise WrongProcess unless this is the process."""
        if self.left:
            raise self.error(what)

    def __repr__(self) -> str:
        return f"<Origin {self.pid}{', left' if self.left else ''}>"


_here = Origin()
_held: set[int] = set()
# Re-entrant: a finalizer may close something while something is made.
_fork_lock = threading.RLock()


def here() -> Origin:
    """Return the process that runs."""
    return _here


def no_fork() -> threading.RLock:
    """Return the lock in which no other thread forks by `os.fork` and the like."""
    return _fork_lock


def hold(fd: int) -> None:
    """Keep children from inheriting this descriptor. Call within `no_fork`, as for the
    code that made it.
    """
    _held.add(fd)


def let_go(fd: int) -> None:
    """Forget a descriptor that is about to be closed. Call within `no_fork`, as for the
    code that closes it.
    """
    _held.discard(fd)


def _before() -> None:
    _fork_lock.acquire()


def _in_parent() -> None:
    _fork_lock.release()


def _in_child() -> None:
    global _here, _held, _fork_lock
    _fork_lock = threading.RLock()
    _here.left = True
    _here = Origin()
    held, _held = _held, set()
    if held:
        nowhere = os.eventfd(0, os.EFD_CLOEXEC)
        for fd in held:
            os.dup2(nowhere, fd, inheritable=False)
        os.close(nowhere)


os.register_at_fork(
    before=_before, after_in_parent=_in_parent, after_in_child=_in_child
)
