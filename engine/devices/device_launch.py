"""Start and end the process behind a `Device`."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.devices.device_state import STOP_TIMEOUT
from engine.devices.process_output import ProcessOutput
from engine.devices.python_options import PythonOptions, device_process
from engine.errors import DeviceLost
from engine.fork_guard import fork_guard, hold, let_go, no_fork
from engine.logs import standard_output_is_wanted
from engine.owner import environment, starting
from engine.run_failures import Death
from engine.transport.held_socket import HeldSocket

_BACKLOG = 128


class _Child(subprocess.Popen[bytes]):
    """A process that forked children of its owner do not touch."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self._fork_guard = fork_guard()
        super().__init__(command, **options)

    def __del__(self) -> None:
        if not self._fork_guard.left:  # a forked child must not wait for it
            super().__del__()


class LaunchedProcess:
    """A running device process. It ends when this object ends it, or when this process
    dies.

    The process takes control messages on the abstract name `address`. It inherits
    `claims`, so the device stays claimed until owner and process have ended. `python`
    is how to start the process of a Python model, and `threads` returns the number of
    threads for its libraries. Raises DeviceLost if the process cannot be started.
    """

    def __init__(
        self,
        name: str,
        address: str,
        claims: Sequence[socket.socket],
        spin_us: int,
        python: PythonOptions | None,
        threads: Callable[[], int],
    ) -> None:
        self._leads_group = python is not None
        self._output: ProcessOutput | None = None
        self._ending, self._reaping = threading.Lock(), threading.Lock()
        self._ticks = 0
        self.has_ended = False
        #: How the process ended; None until that is known.
        self._judged: Death | None = None
        listener = HeldSocket()
        with no_fork():
            read_end, self._owner_pipe = os.pipe()
            hold(self._owner_pipe)
        printed = -1
        try:
            listener.bind(f"\0{address}")
            listener.listen(_BACKLOG)
            inherited = [claim.fileno() for claim in claims]
            # A child that is forked meanwhile would keep the pipe open on which `Popen`
            # waits.
            with no_fork():
                command, options = device_process(), _graph_options()
                if python is not None:
                    command = python.command()
                    heard, printed = os.pipe()
                    self._output = ProcessOutput(python.label, heard)
                    options = _python_options(python, threads(), printed)
                with starting():
                    self._process = _Child(
                        [*command, *_arguments(name, listener, read_end, spin_us)],
                        stdin=subprocess.DEVNULL,
                        pass_fds=[listener.fileno(), read_end, *inherited],
                        **options,
                    )
        except BaseException as error:
            self._close_pipe()
            if not isinstance(error, OSError):
                raise
            raise DeviceLost(
                f"cannot start the process of device {name}: {error}"
            ) from error
        finally:
            # Close our copy, because only the process may listen. Connections to a dead
            # process must be refused and not wait here.
            listener.close()
            os.close(read_end)
            if printed >= 0:
                os.close(printed)

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_worked(self) -> bool:
        """Return whether the process has used the processor since the last call. A
        process that is starting up does so, even on a busy machine.
        """
        before = self._ticks
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        user, system = stat.rpartition(")")[2].split()[11:13]
        self._ticks = int(user) + int(system)
        return self._ticks != before

    def last_words(self) -> str:
        """Return the last line that the ended process of a Python model printed; empty
        if there is none.
        """
        return "" if self._output is None else self._output.last_words(1.0)

    def kill(self) -> None:
        """End the process immediately, with the processes that a Python model has
        started.
        """
        if not self._leads_group:
            self._process.kill()
            return
        with self._reaping:  # no other process has its number before it is reaped
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)

    def _has_gone(self, timeout: float) -> bool:
        """Return whether the process ends within `timeout` seconds. Do not reap it."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        try:
            return bool(poller.poll(timeout * 1000))
        finally:
            os.close(fd)

    @property
    def death(self) -> str:
        """Return how the process ended: the name of a signal, or an exit code."""
        code = self._process.returncode
        if code is None:
            return "for an unknown reason"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"exit code {code}"

    def judged(self, judge: Callable[[str], Death]) -> Death:
        """Return how the process died and which model is to blame.

        The first call ends the process, and `judge` finds it out from how the process
        ended. For one thread at a time.
        """
        if self._judged is None:
            self.stop(kill=True)
            self._judged = judge(self.death)
        return self._judged

    def stop(self, *, kill: bool) -> None:
        """Wait until the process has ended by itself, or kill it. Return when it has
        ended.

        Thread-safe. Does nothing if the process has ended.
        """
        if kill and not self.has_ended:
            self.kill()
        with self._ending:
            if self.has_ended:
                return
            gone = self._has_gone(STOP_TIMEOUT)
            if self._leads_group or not gone:
                self.kill()
                self._has_gone(STOP_TIMEOUT)
            with self._reaping:
                self._process.wait()
            self._close_pipe()
            self.has_ended = True

    def abandon(self) -> None:
        """Forget the process in a forked child. Only close our end of the pipe."""
        if not self.has_ended:
            self.has_ended = True
            self._close_pipe()

    def _close_pipe(self) -> None:
        with no_fork():
            let_go(self._owner_pipe)
            os.close(self._owner_pipe)

    def __repr__(self) -> str:
        state = ", ended" if self.has_ended else ""
        return f"<LaunchedProcess {self.pid}{state}>"


def _graph_options() -> dict[str, Any]:
    """Return how the process of a device that runs graphs is started."""
    stdout = None if standard_output_is_wanted() else subprocess.DEVNULL
    return {"env": environment(), "stdout": stdout}


def _python_options(
    python: PythonOptions, threads: int, printed: int
) -> dict[str, Any]:
    """Return how the process of a Python model is started, which prints to a pipe."""
    return {
        "env": python.variables(threads),
        "cwd": python.folder or None,
        "stdout": printed,
        "stderr": printed,
        # Processes that the model starts are in its group and end with it.
        "start_new_session": True,
    }


def _arguments(
    name: str, listener: socket.socket, owner_fd: int, spin_us: int
) -> list[str]:
    level = logging.getLogger("engine").getEffectiveLevel()
    return [
        *("--listen-fd", str(listener.fileno())),
        *("--owner-fd", str(owner_fd)),
        *("--spin-us", str(spin_us)),
        *("--name", f"popgate-{name}"),
        *("--log-level", str(level)),
    ]
