"""`popgate` forked from a process that has imported it, for tests.

Importing takes most of what a server costs until it listens, and hundreds are started.
From the fork on it is what `popgate` is: its own process, environment, folder, streams
and exit. Some tests start it from nothing all the same (`POPGATE` in served.py).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.compiler.fork_server import ForkServer

#: Seconds that one of them may take to end.
WAIT = 90.0

_IMPORTED = ("app.cli.settings_options", "app.gateway", "app.run")
#: Read when modules are imported.
_FOR_IMPORTS = ("MODEL_RUNTIME_", "POPEF_", "OTEL_", "PYTHON", "COVERAGE", "LD_")


def can_be_warm(environment: Mapping[str, str]) -> bool:
    """Whether nothing in it would have been read by what has been imported already."""
    return all(
        environment.get(name) == os.environ.get(name)
        for name in {*environment, *os.environ}
        if name.startswith(_FOR_IMPORTS)
    ) and not any(name.startswith(_FOR_IMPORTS[:3]) for name in environment)


class WarmProcess:
    """`popgate ARGUMENTS`, as far as tests use `subprocess.Popen`. Thread-safe.

    It writes into the files that `stdout` and `stderr` are.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path | str,
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
    ) -> None:
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self._server = _server()
        read, write = os.pipe()
        with os.fdopen(write, "wb") as job:
            try:
                self.pid = self._server.fork(read, stdout, stderr)
            finally:
                os.close(read)
            job.write(json.dumps([arguments, str(cwd), dict(environment)]).encode())
        # Nobody waits for it but `poll`: the number stays its own until then.
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Its exit code once it has ended, a signal's as a negative number."""
        with self._lock:
            if self.returncode is None and self._has_ended(0):
                self.returncode = self._server.wait(self.pid)
                os.close(self._pidfd)
            return self.returncode

    def wait(self, timeout: float = WAIT) -> int:
        """The exit code; subprocess.TimeoutExpired after so many seconds."""
        if self.returncode is None:
            self._has_ended(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("popgate", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Does nothing once it has ended."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self.returncode is None:
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, timeout: float) -> bool:
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(timeout * 1000))


@functools.cache
def _server() -> ForkServer:
    return ForkServer(__name__, become_popgate.__name__, _IMPORTED)


# -- in the process


def become_popgate(stdin: int, stdout: int, stderr: int) -> None:
    """What it is to be comes over `stdin`."""
    with os.fdopen(stdin, "rb") as job:
        arguments, cwd, environment = json.load(job)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in ((1, stdout), (2, stderr)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(  # type: ignore[misc]
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv[1:] = arguments
    from app.cli import main

    main()
