"""Counts the calls of our functions in a process: between SIGUSR1 and SIGUSR2.

Only of its main thread, which is that of requests in a gateway and in a device; the
next request has it look. Imported by what `bench.calls` has its processes import.
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


def install(folder: Path) -> None:
    """Install signal handlers: at SIGUSR1 make the file `PID.on` in `folder` and count
    from then on; at SIGUSR2 write `PID.json` there: calls by "file function".
    """

    def begin(*_: object) -> None:
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
    if event == "call":
        code = frame.f_code
        path = code.co_filename
        if path.startswith(_ROOT):
            _counts[f"{path.removeprefix(_ROOT)} {code.co_qualname}"] += 1
