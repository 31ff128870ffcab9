"""The tuned server: started by the command, or already running."""

from __future__ import annotations

import os
import secrets
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self

from app.cli.errors import CommandError
from popgate_client import Client, ClientError

#: Seconds until the model is served: it may have to be compiled.
START = 300.0
STOP = 20.0
LOG_LINES = 12
#: Most bytes of the place: a socket's path has at most 107, including the folder's
#: name.
LONGEST_PLACE = 70
#: Key for loading models there; no other client has it.
_KEY = secrets.token_hex()
_STARTED = "  docs     "
#: The server's process ends when this one ends, however that happens.
_SERVE = """
import sys
from engine import die_with
die_with(int(sys.argv.pop(1)))
from popgate.__main__ import main
main()
"""


class Tuned(Protocol):
    """A server and its tuned model. `tls`: of its connections."""

    tls: ssl.SSLContext | None

    def client(self, devices: int) -> Client:
        """Return the client once the server has this many devices."""

    def close(self) -> None:
        """Restore the server's earlier state."""


class RunningServer:
    """A server that others may use as well.

    Closing loads the model again with its folder's settings; the devices stay the same.
    """

    def __init__(
        self, client: Client, name: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self._client, self._name, self.tls = client, name, tls

    def client(self, devices: int) -> Client:
        return self._client

    def close(self) -> None:
        with self._client:
            self._client.load(self._name)


class OwnServer:
    """`popgate serve` on a socket in its own folder; closing removes everything.

    It has its own pool of devices, and restarts to change their number.
    """

    tls: ssl.SSLContext | None = None

    def __init__(self, name: str, options: list[str]) -> None:
        self._name, self._options = name, options
        self._folder = tempfile.TemporaryDirectory(prefix="popgate-tune-", dir=_place())
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        self._client: Client | None = None
        self._devices = 0

    def client(self, devices: int) -> Client:
        if self._client is None or devices != self._devices:
            self._stop()
            self._client = self._started(devices)
            self._devices = devices
        return self._client

    def close(self) -> None:
        self._stop()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _started(self, devices: int) -> Client:
        folder = Path(self._folder.name)
        log, socket = folder / "log", folder / "socket"
        variables = {"POPGATE_POOL": f"tune-{os.getpid()}", "POPGATE_API_KEY": _KEY}
        ours, self._lifeline = os.pipe()
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _SERVE, str(ours), "serve",
                     *self._options, "--uds", str(socket), "--devices",
                     f"cpu:{devices}", "--no-pages", "--access-log", "off"],
                    env=_environment(variables),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # only this process receives Control-C, and ends the server
                    start_new_session=True,
                    pass_fds=(ours,),
                )  # fmt: skip
        finally:
            os.close(ours)
        client = Client(f"unix:{socket}", timeout=60, api_key=_KEY)
        try:
            self._wait_ready(client, log)
        except BaseException:
            client.close()
            raise
        return client

    def _wait_ready(self, client: Client, log: Path) -> None:
        assert self._process is not None
        for _ in range(int(START)):
            ended = self._process.poll() is not None
            said = log.read_text(errors="replace")
            with suppress(ClientError):
                client.wait_ready(self._name, timeout=1.0)
                return
            # The server reports all models once it has tried to load them.
            if ended or _STARTED in said:
                lines = "\n  ".join(said.splitlines()[:LOG_LINES])
                raise CommandError(f"{self._name} is not served:\n  {lines}")
        raise CommandError(
            f"{self._name} was not ready after {START:.0f} s; `popgate serve` shows why"
        )

    def _stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def _place() -> str:
    """Return the folder for temporary files, or another if a socket's path would be too
    long there.
    """
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= LONGEST_PLACE else "/tmp"


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without the settings of another server."""
    own = ("POPGATE_POOL", "POPGATE_SPIN_US", "POPGATE_PURE")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("POPGATE_") or name in own
    }
    return {**kept, **more}
