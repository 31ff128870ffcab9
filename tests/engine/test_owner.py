"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from engine.owner import environment, starting
from tests.support import WAIT

CHILD = """
import os, sys
from engine.owner import die_with
die_with(int(sys.argv[1]), group="group" in sys.argv)
if "group" in sys.argv and os.fork() == 0:
    os.close(int(sys.argv[1]))
os.write(1, b"ready\\n")
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


def test_a_group_ends_with_its_owner() -> None:
    owned, owner = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(owned), "group"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[owned],
        env=environment(),
        start_new_session=True,
    )
    with child:
        try:
            os.close(owned)
            assert child.stdout is not None
            assert [child.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
            os.close(owner)
            assert child.wait(WAIT) == -signal.SIGKILL
            assert child.stdout.read() == b""  # the other has ended as well
        finally:
            child.kill()


STARTED = """
import os, signal
os.write(1, b"up")
os.read(0, 2)
from engine.owner import leave_ending_to_owner
leave_ending_to_owner()
os.write(1, b"on %d" % len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
"""


def test_what_ends_a_program_does_not_meet_one_that_starts() -> None:
    """Control-C during its imports, say. What was blocked before its owner comes in."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        with starting():
            child = subprocess.Popen(
                [sys.executable, "-c", STARTED],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment(),
            )
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert blocked == {*before, signal.SIGUSR1}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with child:
        assert child.stdout is not None
        assert child.stdout.read(2) == b"up"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            child.send_signal(number)
        assert child.communicate(b"go", WAIT)[0] == b"on 0"
    assert child.returncode == 0
