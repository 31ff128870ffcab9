"""What processes take, as the kernel says."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from app.observe.processes import use_of


def test_what_this_process_takes() -> None:
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    use = use_of(os.getpid())
    assert use is not None
    assert 1 << 20 < use.resident < 1 << 40
    assert 0.02 < use.cpu_seconds <= time.process_time() + 0.1


def test_a_process_that_has_ended_takes_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert use_of(ended.pid) is None
