"""Starting and ending the process behind a `Device`."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.errors import DeviceLost
from engine.logs import standard_output_is_wanted

#: Seconds a device process gets to end by itself before it is killed.
STOP_TIMEOUT = 5.0
_BACKLOG = 128


class LaunchedProcess:
    """A running device process; it ends when this does, or when we die.

    `address` is the abstract name on which it takes control messages; `claims` are
    inherited, so that the device stays claimed until owner and process are gone.
    """

    def __init__(
        self,
        name: str,
        address: str,
        claims: Sequence[socket.socket],
        spin_us: int = 0,
    ) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read_end, self._owner_pipe = os.pipe()
        try:
            listener.bind(f"\0{address}")
            listener.listen(_BACKLOG)
            inherited = [claim.fileno() for claim in claims]
            self._process = subprocess.Popen(
                _command(name, listener.fileno(), read_end, spin_us),
                stdin=subprocess.DEVNULL,
                stdout=None if standard_output_is_wanted() else subprocess.DEVNULL,
                pass_fds=[listener.fileno(), read_end, *inherited],
                env=_environment(),
            )
        except OSError as error:
            os.close(self._owner_pipe)
            raise DeviceLost(
                f"cannot start the process of device {name}: {error}"
            ) from error
        finally:
            # Ours only until the process has it: a connection to a process that has
            # died must be refused, not wait here.
            listener.close()
            os.close(read_end)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        self._process.kill()

    def end(self, *, kill: bool) -> None:
        """Wait until it has ended by itself, or kill it; returns when it is gone."""
        if kill:
            self._process.kill()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._owner_pipe)

    def __repr__(self) -> str:
        return f"<LaunchedProcess {self.pid}>"


def _command(name: str, listen_fd: int, owner_fd: int, spin_us: int) -> list[str]:
    level = logging.getLogger("engine").getEffectiveLevel()
    return [
        *(sys.executable, "-P", "-m", "engine.device_process"),
        *("--listen-fd", str(listen_fd)),
        *("--owner-fd", str(owner_fd)),
        *("--spin-us", str(spin_us)),
        *("--name", f"popgate-{name}"),
        *("--log-level", str(level)),
    ]


def _environment() -> dict[str, str]:
    """Ours, with the place of this package first: `-P` keeps the user's own folders
    (who may have an `engine.py` there) from being searched."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
