"""The end of a child that the code of a Python model has forked.

A child has a copy of the whole device process, which it would go on being: it would
answer requests of its parent. It ends as soon as it comes back from the author's code.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """End the process unless it is `pid`, with the exit code that `error` means to the
    interpreter; what was printed is flushed."""
    if os.getpid() == pid:
        return
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    elif error is not None:
        code = 1
        with contextlib.suppress(BaseException):
            traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)
