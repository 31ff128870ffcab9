"""Count the calls of our functions in a process between SIGUSR1 and SIGUSR2.

It counts only the main thread, which handles the requests in a gateway and in a device.
A sleeping thread handles a signal at its next request. The `sitecustomize` of
`bench.calls` imports this module.

What timers call does not count, because a slow request sees more of them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

_ROOT = str(Path(__file__).resolve().parents[2]) + os.sep
_counts: Counter[str] = Counter()
#: Functions and files that timers call, or that time makes a request call: what looks
#: several times a second, the head of an answer in a new second, and the journal, which
#: keeps a request if it is slower than those before.
_OF_TIMERS = (
    "app/http/connection/exchange.py CommonHead.renew",
    "app/http/server.py",
    "app/observe/journal.py",
    "app/repository/control/folder_polls.py FolderPolls._poll",
    "app/repository/devices.py DeviceWatch._look_at_runs",
    "app/repository/devices.py DeviceWatch._ping",
    "app/run.py",
    "app/serving/deadlines.py Deadlines._sweep",
    "popgate_pages/history.py History.keep",
    "uvicorn/server.py",
)
#: The outermost such function that runs now.
_timer: FrameType | None = None


def install(folder: Path) -> None:
    """Install signal handlers.

    SIGUSR1 makes the file `PID.on` in `folder` and starts counting from zero. SIGUSR2
    writes `PID.json` there: calls by "file function".
    """

    def begin(*_: object) -> None:
        global _timer
        _counts.clear()
        _timer = None  # counting may have ended within one
        (folder / f"{os.getpid()}.on").touch()
        sys.setprofile(_count)

    def end(*_: object) -> None:
        sys.setprofile(None)
        written = folder / f"{os.getpid()}.part"
        written.write_text(json.dumps(_counts))
        written.rename(written.with_suffix(".json"))

    for number, handler in ((signal.SIGUSR1, begin), (signal.SIGUSR2, end)):
        signal.signal(number, handler)
        signal.siginterrupt(number, False)


def _count(frame: FrameType, event: str, _: object) -> None:
    global _timer
    if event == "return" and frame is _timer:
        _timer = None
    elif event == "call" and _timer is None:
        code = frame.f_code
        path = code.co_filename
        if not path.startswith(_ROOT):
            return
        name = f"{path.removeprefix(_ROOT)} {code.co_qualname}"
        if path.endswith(_OF_TIMERS) or name.endswith(_OF_TIMERS):
            _timer = frame
        else:
            _counts[name] += 1
