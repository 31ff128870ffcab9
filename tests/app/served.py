"""A real `popgate serve`, started, asked and ended by tests."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

import httpx

from app.plugins import REGIONS, TRACERS, plugin_names
from app.repository.model_sources import RemoteCaches
from tests.engine import models
from tests.support import WAIT, until
from tests.warm import children

POPGATE = [sys.executable, "-c", "from app.cli import main; main()"]
ROOT = Path(__file__).resolve().parents[2]

_NUMBERS = itertools.count()
#: The server's line about its models has this once they are loaded.
_STARTED = ", after "

#: For what has no models from elsewhere: a cache that is not there.
NOTHING_TAKEN = RemoteCaches(Path("/nowhere"))


#: Fills a new folder and serves it, with these options (`serve` in conftest.py).
Serve: TypeAlias = "Callable[..., ServedGateway]"


def add(
    root: Path,
    name: str,
    make: Callable[[Path], Path] = models.affine,
    *,
    version: int = 1,
    config: str = "",
) -> Path:
    """Puts a model into a folder of its own as operators do: beside, then renamed into
    its place."""
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        (root / name / "config.toml").write_text(config)
    return make(root / ".new").rename(folder / "m.popef")


def popgate(first: str = "") -> list[str]:
    """Return the command `popgate`; its process runs the statements `first` before."""
    *python, code = POPGATE
    return [*python, f"{first}{code}"]


def trace_to(file: Path) -> tuple[str, ...]:
    """Options that write traces to a file, where a plugin does that."""
    return ("--trace-file", str(file)) if plugin_names(TRACERS) else ()


def share_memory() -> tuple[str, ...]:
    """Options that let requests name shared memory, where a plugin does that."""
    return ("--allow-shared-memory",) if plugin_names(REGIONS) else ()


def run_popgate(*arguments: str | Path, **variables: str) -> Any:
    """A command that ends by itself: its code and what it wrote."""
    return subprocess.run(
        [*POPGATE, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT * 2,
        check=False,
    )


def memory_of(gateway: ServedGateway) -> int:
    """Bytes of memory that its process has."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


class ServedGateway:
    """`popgate serve` on a free port, with a device pool of its own. A context manager.

    `before` are words in front of the command, which runs it as another user. `first`
    are statements that its process runs before it serves.
    Leaving it ends the server with SIGTERM and checks nothing; `stop` returns the code.
    """

    def __init__(
        self,
        repository: Path | None,
        *options: str,
        pool: str | None = None,
        cwd: Path | str = ROOT,
        before: Sequence[str] = (),
        first: str = "",
        **variables: str,
    ) -> None:
        self.pool = pool or f"test-app-{os.getpid()}-{next(_NUMBERS)}"
        command = ["serve"]
        if repository is not None:
            command += ["--model-repository", str(repository)]
        if not any(option.startswith("--uds") for option in options):
            command += ["--port", "0"]
        command += options
        # What holds a device in a test may have to for longer than the default of 30 s.
        own = {"POPGATE_POOL": self.pool, "POPGATE_RUN_TIMEOUT": "0"}
        environment = {**os.environ, **own, **variables}
        self.process = subprocess.Popen(
            [*before, *popgate(first), *command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self._stdout = self.process.stdout
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        first = self.wait_line("listens on")
        self.url = first.split("listens on ")[1].split(",")[0]
        transport = None
        base = self.url
        if base.startswith("unix:"):
            uds = base.removeprefix("unix:")
            transport = httpx.HTTPTransport(uds=uds)
            base = "http://localhost"
        self.client = httpx.Client(
            base_url=base, timeout=WAIT, trust_env=False, transport=transport
        )

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_line(self, text: str) -> str:
        """The first line it writes with `text` in it."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: self._ended or any(text in line for line in self.lines), WAIT
            )
        for line in list(self.lines):
            if text in line:
                return line
        why = "it ended" if found else "it did not come in time"
        raise AssertionError(f"no line with {text!r}, {why}:\n{self.output}")

    def wait_ready(self) -> Self:
        # The server writes when it has loaded its models. To ask before that takes the
        # core that it needs.
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or any(_STARTED in line for line in self.lines),
                WAIT,
            )
        self.until("/v1/health/ready", 200)
        return self

    def until(self, path: str, status: int) -> httpx.Response:
        """Asks until `path` answers with `status`."""
        responses: list[httpx.Response] = []

        def has_answered() -> bool:
            assert self.process.poll() is None, self.output
            responses[:] = [self.client.get(path)]
            return responses[0].status_code == status

        until(has_answered, lambda: f"{path}: {responses[0].text}\n{self.output}")
        return responses[0]

    def infer(self, name: str, **inputs: Any) -> Any:
        """The outputs of a request in JSON, by name, as flat lists."""
        response = self.client.post(f"/v1/models/{name}/infer", json={"inputs": inputs})
        assert response.status_code == 200, response.text
        return {o["name"]: o["data"] for o in response.json()["outputs"]}

    def workers(self) -> list[int]:
        """The processes of `--workers` that run now."""
        return children(self.process.pid, "worker")

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        if self.process.poll() is None:
            self.send(number)
        return self.join()

    def join(self) -> int:
        """The exit code, once it ends."""
        try:
            return self.process.wait(WAIT)
        finally:
            self.process.kill()
            self._reader.join(WAIT)

    def _read(self) -> None:
        with self._stdout as stdout:
            for line in stdout:
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.close()
        self.stop()
