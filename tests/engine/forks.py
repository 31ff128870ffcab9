"""What scripts that fork share; they run in processes of their own.

python forks.py's folder on the path, the model in sys.argv[1]
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

#: Seconds after which a child that hangs is ended.
LONGEST = 90


def given(value: float, rows: int = 1) -> dict[str, Any]:
    return {"input": np.full((rows, 4), value, np.float32)}


def answer(outputs: Any) -> float:
    """The number that all of an output is."""
    [number] = set(np.asarray(outputs["output"]).reshape(-1).tolist())
    return float(number)


def fork(body: Callable[[], object]) -> int:
    """A child that calls `body` and ends without any cleaning up; its pid."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        signal.alarm(LONGEST)
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return pid


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def refused(call: Callable[[], object], *words: str) -> None:
    """The call raises what a child is told."""
    error: RuntimeError | None = None
    try:
        call()
    except RuntimeError as raised:
        error = raised
    assert type(error).__name__ == "WrongProcess", repr(error)
    whose = f"made in process {os.getppid()}; process {os.getpid()}, "
    for part in (whose, "must make its own", *words):
        assert part in str(error), (part, error)


def pause_for_ever() -> None:
    """Until somebody kills it, or nobody is left to do so."""
    signal.pause()
