"""Closing of open objects at the end of the program.

Python then runs the finalizers of the remaining objects, so save programs run and
devices become free. Daemon threads that still run then use closed objects. Their errors
are not reported.
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
    """Silence the errors of daemon threads that use closed objects from now on."""
    before = threading.excepthook

    def hook(failure: threading.ExceptHookArgs) -> None:
        thread, error = failure.thread, failure.exc_value
        if thread is None or not thread.daemon or not isinstance(error, engine.Closed):
            before(failure)

    threading.excepthook = hook


# Python calls exit functions in reverse order. The first finalizer registers all of
# them, so `_hush` is called before them.
close_with(_hush, int)
atexit.register(_hush)
