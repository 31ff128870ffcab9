"""Count the calls of our functions in a process between SIGUSR1 and SIGUSR2.

It counts only the main thread, which handles the requests in a gateway and in a device.
A sleeping thread handles a signal at its next request. The `sitecustomize` of
`bench.calls` imports this module.
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
    """Install signal handlers.

    SIGUSR1 makes the file `PID.on` in `folder` and starts counting from zero. SIGUSR2
    writes `PID.json` there: calls by "file function".
    """

    def begin(*_: object) -> None:
        _counts.clear()
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
