"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from engine.owner import environment
from tests.support import WAIT

CHILD = """
import os, sys
from engine.owner import die_with
die_with(int(sys.argv[1]))
print("ready", flush=True)
while True:
    os.read(0, 1)
"""


def test_a_process_that_is_stopped_ends_with_its_owner() -> None:
    owned, owner = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(owned)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[owned],
        env=environment(),
    )
    with child:
        try:
            os.close(owned)
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            child.send_signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
            os.close(owner)
            assert child.wait(WAIT) == -signal.SIGKILL
        finally:
            child.kill()
