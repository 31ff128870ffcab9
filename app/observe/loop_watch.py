"""Turns of an event loop that take long, named: for debugging.

A process in whose environment `POPGATE_LOOP_WATCH` names a file appends a line to it
for each turn of its event loop that took more than 20 ms of processor time: the
process, how long, and where its thread was after 20 ms. A turn is all that runs between
two looks of a timer, so many short callbacks may make one as well.

A signal handler of the thread itself writes where it was, so that calls of compiled
code are named, too. (Another thread that reads frames while they change ends the
process.) What others hold up the loop with, which have the interpreter's lock, is no
processor time of its thread.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "POPGATE_LOOP_WATCH"
#: Seconds of processor time that a turn may take.
LIMIT: Final = 0.02
_EVERY = 0.005
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\w+)')
_FRAMES = 6


class LoopWatch:
    """Looks after one event loop, from the main thread, until `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop = loop
        self._path = path
        self._where = tempfile.TemporaryFile()  # noqa: SIM115 - until `stop`
        self._used = time.thread_time()
        self._timer: asyncio.TimerHandle | None = None
        faulthandler.register(signal.SIGALRM, self._where, all_threads=False)
        self._look()

    def _look(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        used = time.thread_time()
        took, self._used = used - self._used, used
        if took > LIMIT:
            self._write(took)
        if self._where.tell():
            self._where.seek(0)
            self._where.truncate()
        self._used = time.thread_time()
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        self._timer = self._loop.call_later(_EVERY, self._look)

    def _write(self, took: float) -> None:
        self._where.seek(0)
        text = self._where.read().decode(errors="replace")
        main = text.rpartition("(most recent call first)")[2]
        frames = [
            f"{'/'.join(Path(path).parts[-3:])}:{line} {name}"
            for path, line, name in _FRAME.findall(main)[:_FRAMES]
        ]
        line = f"{os.getpid()} {took * 1e3:.0f} ms: {' < '.join(frames)}\n"
        with self._path.open("a") as file:
            file.write(line)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)
        self._where.close()

    def __repr__(self) -> str:
        return f"<LoopWatch {self._path}>"


def watch(loop: asyncio.AbstractEventLoop) -> LoopWatch | None:
    """Begin to look after a loop, if the environment says so. From its thread."""
    path = os.environ.get(VARIABLE)
    return LoopWatch(loop, Path(path)) if path else None
