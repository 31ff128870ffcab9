"""Names the turns of an event loop that take long: for debugging.

If the variable `POPGATE_LOOP_WATCH` names a file, the process appends a line for each
turn of its event loop that took more than 20 ms of processor time. The line has the
process, the time, and the place of its thread after 20 ms. A turn is everything between
two checks of a timer, so many short callbacks can also make a long one.

A signal handler of the thread itself writes its place, so calls of compiled code are
named too. (If another thread read frames while they change, the process would end.)
Delays by other threads that hold the interpreter's lock do not count as this thread's
processor time.
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

#: Seconds of processor time that a turn may take.
LIMIT: Final = 0.02
_EVERY = 0.005
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\w+)')
_FRAMES = 6


class LoopWatch:
    """Watches one event loop, from the main thread, until `stop`."""

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
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)
        self._where.close()

    def __repr__(self) -> str:
        return f"<LoopWatch {self._path}>"
