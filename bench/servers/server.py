"""Start, watch and stop the servers that are measured or tested: real processes."""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.servers.processes import (
    Usage,
    children,
    command_line,
    cpu_seconds,
    tree,
    usage,
)

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
_STOP_WITHIN = 20.0
#: Arguments with which an interpreter runs the command line of its own path.
_MAIN = ["-c", "from app.cli import main; main()"]


class ServerFailed(RuntimeError):
    """A server ended or did not become ready; the message ends with its log."""


def free_port() -> int:
    """Return a free port of 127.0.0.1.

    The kernel never chooses this port by itself, so no process receives it by chance
    before a server starts.
    """
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    first = int(given.split()[0])
    below, above = range(10_000, first), range(61_000, 65_536)
    ports = below if len(below) >= len(above) else above
    while True:
        port = random.choice(ports)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue  # taken: try another
        return port


class Server:
    """One server process, its children and its log. A context manager.

    Leaving the context stops it with SIGTERM, and with SIGKILL after 20
    seconds. `environment` is added to the variables of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        *,
        name: str = "server",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self._log = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed with us
            prefix=f"{name}-", suffix=".log"
        )
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            list(command),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )

    def __repr__(self) -> str:
        state = "running" if self.process.poll() is None else "ended"
        return f"Server({self.name}, pid {self.pid}, port {self.port}, {state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
            if error is not None:
                print(f"--- log of {self.name} ---\n{self.log()}", file=sys.stderr)
        finally:
            self._log.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def log(self, last: int = 60) -> str:
        """Return the last lines that the server wrote."""
        text = Path(self._log.name).read_text(errors="replace")
        return "\n".join(text.splitlines()[-last:])

    def status(self, path: str, timeout: float = 5.0) -> int:
        """Return the HTTP status of a GET; 0 if there is no answer."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def wait_ready(
        self, timeout: float = 60.0, path: str = "/v2/health/ready"
    ) -> float:
        """Wait until `path` answers 200; return seconds since the start of the process.

        Raises:
            ServerFailed: the process ended, or `timeout` seconds passed.
        """
        while self.status(path) != 200:
            if self.process.poll() is not None:
                msg = f"{self.name} ended with {self.process.returncode}"
                raise ServerFailed(f"{msg}\n{self.log()}")
            if time.monotonic() - self.started > timeout:
                raise ServerFailed(
                    f"{self.name} not ready in {timeout} s\n{self.log()}"
                )
            time.sleep(0.01)
        return time.monotonic() - self.started

    def pids(self) -> list[int]:
        """Return the process and everything below it."""
        return tree(self.pid)

    def cpu(self) -> float:
        """Return the seconds of processor time of all its processes so far."""
        return cpu_seconds(self.pids())

    def device_pids(self) -> list[int]:
        """Return the device processes of a gateway."""
        return self._children("engine.worker.device_process")

    def worker_pids(self) -> list[int]:
        """Return the workers of a gateway that has some."""
        return self._children("popgate_workers.process")

    def _children(self, module: str) -> list[int]:
        found = children(self.pid)
        return [pid for pid in found if any(module in w for w in command_line(pid))]

    def usage(self) -> Usage:
        return usage(self.pids())

    def stop(self) -> int:
        """Send SIGTERM, wait, then send SIGKILL.

        Return the exit code (negative: by signal).
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_STOP_WITHIN)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode

    def kill(self) -> None:
        """Send SIGKILL to the server process only; its children must notice by
        themselves.
        """
        self.process.kill()
        self.process.wait()


def gateway(
    repository: Path,
    *options: str,
    devices: str | None = None,
    port: int | None = None,
    environment: dict[str, str] | None = None,
    name: str = "gateway",
    python: str = sys.executable,
) -> Server:
    """Return `popgate serve` on a repository folder; `options` go to its command line.

    This process has its own device pool, so its gateways and others on the machine do
    not wait for each other.
    """
    # Some callers load and unload. Earlier versions only warn about variables that they
    # do not know.
    pool = {"POPGATE_POOL": f"bench-{os.getpid()}", "POPGATE_TRUST_LOOPBACK": "1"}
    port = free_port() if port is None else port
    command = [python, *_MAIN, "serve", "--model-repository", str(repository)]
    command += ["--host", HOST, "--port", str(port)]
    if devices is not None:
        command += ["--devices", devices]
    variables = {**pool, **(environment or {})}
    return Server([*command, *options], port, name=name, environment=variables)


def compile_models(
    models: Sequence[Path],
    out_dir: Path,
    *options: str,
    environment: dict[str, str] | None = None,
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Run `popgate compile A.onnx … --out-dir DIR`; exit code 1 for refused models."""
    command = [python, *_MAIN, "compile", *map(str, models), "--out-dir", str(out_dir)]
    return subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
