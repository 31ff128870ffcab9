"""End a child process that the code of a Python model has forked.

A forked child is a copy of the whole device process and would go on as its parent does,
answering the parent's requests. So the child ends as soon as the author's code returns
in it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """End this process unless its id is `pid`. Flush its output and exit with the
    interpreter's exit code for `error`.
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
