"""Let signals end the processes that the code of a Python model starts.

A device process ignores SIGINT, SIGTERM and SIGHUP, because its owner ends it. Children
would inherit this, also through `exec`, and `Popen.terminate` and `Pool.terminate`
would not end them.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


#: The signals that a thread has blocked before its present fork.
_blocked = threading.local()


def let_signals_end_children() -> None:
    """Keep ignoring the signals in this process, by a handler that does nothing.
    Children do not inherit handlers through `exec`, and reset it after `fork`.

    For the main thread. Does nothing if the signals are not ignored.
    """
    ignored = [each for each in _ENDING if signal.getsignal(each) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, _ignore)
        signal.siginterrupt(number, False)
    if ignored:
        os.register_at_fork(
            before=_block, after_in_parent=_unblock, after_in_child=_reset
        )


def _ignore(*_: object) -> None:
    """Ignore a signal."""


def _block() -> None:
    """Keep signals pending. The handler would lose those that reach the child before
    it is reset.
    """
    _blocked.before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.before)


def _reset() -> None:
    for number in _ENDING:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.SIG_DFL)
    _unblock()
