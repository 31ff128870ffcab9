"""Tie a started process to its owner: it ends with the owner and finds the owner's
modules.

The owner holds the write end of a pipe open and passes the read end. When the owner
dies in any way, the pipe closes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Signals that end a program. Control-C in a terminal, or stopping a service, sends
#: them to the whole process group. The owner then decides when its other processes end.
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def die_with(owner_fd: int, *, group: bool = False) -> None:
    """Ask the kernel to end this process when the other end of the pipe closes.

    With `group`, this process leads a process group, and all processes of the group
    end.

    A pipe whose last writer ends raises a signal, here SIGKILL, which also ends a
    stopped process. Unlike a parent-death signal it does not depend on the thread that
    started the process, and unlike a thread that reads the pipe it needs no
    interpreter.
    """
    fcntl.fcntl(owner_fd, fcntl.F_SETOWN, -os.getpgrp() if group else os.getpid())
    fcntl.fcntl(owner_fd, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(owner_fd, fcntl.F_GETFL)
    fcntl.fcntl(owner_fd, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if os.read(owner_fd, 1) == b"":  # the owner had already ended
            os._exit(0)


def environment() -> dict[str, str]:
    """Return our environment for a process that is started with `-P`. Put the folder of
    this package first in PYTHONPATH. `-P` keeps Python from searching the working
    folder, which may have an `engine.py`.
    """
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Block the signals that end a program while a process is started. The process
    inherits this, so no such signal arrives during its imports, before
    `leave_ending_to_owner`.

    For the thread that starts it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_ending_to_owner() -> None:
    """Ignore the signals that end a program, and unblock all others. Otherwise signals
    that the owner blocked would stay blocked, and only SIGKILL could end this process.
    """
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
