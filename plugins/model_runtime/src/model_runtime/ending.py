"""The end of the program, which closes what is open.

Python runs the finalizers of what still lives, so that save programs are run and
devices are free, while daemon threads go on. For them everything is closed all of a
sudden; that they end of it is no error to report.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable

import engine


def close_with(owner: object, close: Callable[[], object]) -> None:
    """Call `close` when `owner` is no longer referenced, or the program ends."""
    weakref.finalize(owner, close)


def _hush() -> None:
    """Silence daemon threads that meet closed objects from now on."""
    before = threading.excepthook

    def hook(failure: threading.ExceptHookArgs) -> None:
        thread, error = failure.thread, failure.exc_value
        if thread is None or not thread.daemon or not isinstance(error, engine.Closed):
            before(failure)

    threading.excepthook = hook


# What is registered later is called sooner: before the finalizers, which register
# themselves with the first one.
close_with(_hush, int)
atexit.register(_hush)
