"""End a child process that the code of a Python model has forked.

A child is a copy of the whole device process and would go on like it: it would answer
requests of its parent. So it ends as soon as the author's code returns in it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """End the process unless it is `pid`, with the interpreter's exit code for `error`,
    after flushing its output.
    """
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
