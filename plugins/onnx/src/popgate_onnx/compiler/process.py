"""Compile in a separate process, with limits on time and memory.

A process that has imported the compiler forks these processes (`ForkServer`). It ends
after some time without a job.

The compiler runs the model in ONNX Runtime. So a hostile model may compile for ever,
take all memory, or crash the process. The damage stays within this process, which ends
with its owner at the latest.

`Compilations.run` is the owner's side. The name of a function and its arguments are
sent as JSON. The process answers in lines of JSON: `{"stage", "done"}`, and at the end
`{"result"}` or `{"error", "message"}`, the fields of
`engine.transport.error_report.ErrorReport`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import resource
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from engine.errors import EngineError, InvalidModel, RunnerClosed
from engine.owner import die_with
from engine.transport.error_report import ErrorReport
from popgate_onnx.compiler.fork_server import ForkServer
from popgate_onnx.compiler.options import CompileOptions, CompileReport, Progress

_log = logging.getLogger(__name__)

#: Seconds that compiling one model may take.
DEFAULT_SECONDS = 600.0
#: The part of the machine's memory that compiling one model may take.
_MEMORY_PART = 0.75
#: The process that forks is ended after this many seconds without a job.
_IDLE = 5.0
_READ = 1 << 16
_MOST_RESULT = 64 << 20
"""Most bytes that a compiler may write as its answer."""


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """Limits for compiling one model: seconds, and bytes of memory (0: three quarters
    of the machine's).
    """

    seconds: float = DEFAULT_SECONDS
    memory: int = 0

    @property
    def bytes(self) -> int:
        if self.memory:
            return self.memory
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return int(pages * size * _MEMORY_PART)


class Compilations:
    """The compilations that run now.

    Thread-safe. `close` ends all compilations. Leaving the `with` block does the same.
    """

    def __init__(self, limits: CompileLimits | None = None) -> None:
        self._limits = limits or CompileLimits()
        # Re-entrant, because a signal handler may call `close` during `close`.
        self._lock = threading.RLock()
        self._running: set[_CompilerProcess] = set()
        self._server: ForkServer | None = None
        self._idle: threading.Timer | None = None
        self._closed = False

    def run(
        self,
        call: Callable[..., Any],
        *arguments: Any,
        progress: Progress | None = None,
    ) -> Any:
        """Run `call(*arguments, progress)` in a separate process and return its result.

        `call` must be a module's function, and its arguments must fit into JSON.
        Blocks. Passes on the engine's errors and OSError from `call`. Raises
        InvalidModel if `call` exceeds its time or memory, or crashes.
        """
        limits = self._limits.seconds, self._limits.bytes
        call_named = call.__module__, call.__name__
        job = json.dumps([*limits, *call_named, arguments]).encode()
        with self._process(call.__module__) as process:
            return self._wait(process, job, progress or _silent)

    def close(self) -> None:
        """End all running processes, and refuse new ones from now on."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()
            self._end_server()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _process(self, module: str) -> Iterator[_CompilerProcess]:
        with self._lock:
            if self._closed:
                raise RunnerClosed("the compiler is shut down")
            if self._idle is not None:
                self._idle.cancel()
            if self._server is None or self._server.has_ended:
                # Modules of the compiler import onnx when they need it: each job would.
                imports = ["onnx", f"{__package__}.compile", module]
                self._server = ForkServer(__name__, _work.__name__, imports)
            process = _CompilerProcess(self._server)
            self._running.add(process)
        try:
            yield process
        finally:
            process.close()
            with self._lock:
                self._running.discard(process)
                if not self._running and self._server is not None:
                    self._idle = threading.Timer(_IDLE, self._rest)
                    self._idle.daemon = True
                    self._idle.start()

    def _rest(self) -> None:
        with self._lock:
            if not self._running:
                self._end_server()

    def _end_server(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _wait(self, process: _CompilerProcess, job: bytes, progress: Progress) -> Any:
        stage = "starting"
        process.start(job)  # the first job waits until the compiler is imported
        deadline = time.monotonic() + self._limits.seconds
        for line in process.lines(deadline):
            said = json.loads(line)
            if "stage" in said:
                stage = str(said["stage"])
                progress(stage, float(said["done"]))
            elif "result" in said:
                return said["result"]
            elif said["error"] == OSError.__name__:
                raise OSError(said["errno"], said["message"], said["file"])
            elif said["error"] == MemoryError.__name__:
                raise self._refuse(f"needs more memory than {self._memory}", stage)
            else:
                raise ErrorReport(str(said["error"]), str(said["message"])).to_error()
        if self._closed:
            raise RunnerClosed("compilation was cancelled: the compiler is shut down")
        if time.monotonic() >= deadline:
            seconds = f"{self._limits.seconds:g} s"
            raise self._refuse(f"took longer than {seconds}", stage)
        raise self._refuse(f"crashed the compiler ({process.ending()})", stage)

    @property
    def _memory(self) -> str:
        return f"{self._limits.bytes / (1 << 30):.3g} GiB"

    def _refuse(self, what: str, stage: str) -> InvalidModel:
        return InvalidModel(f"compilation {what} (stage: {stage})")

    def __repr__(self) -> str:
        return f"<Compilations {len(self._running)} running, {self._limits}>"


class _CompilerProcess:
    """One process that compiles. It ends when `kill` closes the pipe to it."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._number: int | None = None
        self._read, self._out = os.pipe()
        self._in, self._write = os.pipe()
        self._owned, owner = os.pipe()
        # A caller pops the descriptor before closing it, so only one caller closes it.
        self._owner = [owner]

    def start(self, job: bytes) -> None:
        """Start the job in the process."""
        with contextlib.suppress(OSError):  # the server is shut down
            self._number = self._server.fork(self._in, self._out, self._owned)
        for name in ("_in", "_out", "_owned"):
            self._close(name)
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._write, "wb") as out:
            self._write = -1
            out.write(job)

    def lines(self, deadline: float) -> Iterator[bytes]:
        """Yield the lines that the process writes, until it ends or the deadline has
        passed.
        """
        poller = select.poll()
        poller.register(self._read, select.POLLIN)
        rest = b""
        while (left := deadline - time.monotonic()) > 0:
            if not poller.poll(left * 1000):
                return
            part = os.read(self._read, _READ)
            if not part or len(rest) > _MOST_RESULT:
                return
            *whole, rest = (rest + part).split(b"\n")
            yield from whole

    def ending(self) -> str:
        """Return in words how the process ended."""
        code = self._reap()
        if code is None:
            return "ended from outside"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """End the process. Callable from any thread and from a signal handler."""
        with contextlib.suppress(IndexError):
            os.close(self._owner.pop())

    def close(self) -> None:
        """End the process and close all descriptors."""
        self.kill()
        self._reap()
        for name in ("_in", "_out", "_owned", "_read", "_write"):
            self._close(name)

    def _reap(self) -> int | None:
        number, self._number = self._number, None
        if number is None:
            return None
        try:
            return self._server.wait(number)
        except OSError:  # the server and its processes are shut down
            return None

    def _close(self, name: str) -> None:
        number = getattr(self, name)
        setattr(self, name, -1)
        if number >= 0:
            os.close(number)


def _silent(stage: str, done: float) -> None:
    """Ignore the progress."""


# -- jobs that the process runs


def compile_in_process(
    source: Path,
    target: Path,
    options: CompileOptions,
    progress: Progress | None = None,
    compilations: Compilations | None = None,
) -> CompileReport:
    """Run `compile_model` in a separate process. Raises the errors of
    `Compilations.run`.

    Several start faster if they share `compilations`.
    """
    job = str(source), str(target), options.to_message()
    return _reported(compilations, compile_job, job, progress)


def fuse_in_process(
    sources: Sequence[tuple[str, Path]],
    target: Path,
    selector: str,
    options: CompileOptions,
    progress: Progress | None = None,
    compilations: Compilations | None = None,
) -> CompileReport:
    """Run `compile_fused` in a separate process."""
    named = [[name, str(path)] for name, path in sources]
    job = named, str(target), selector, options.to_message()
    return _reported(compilations, fuse_job, job, progress)


def _reported(
    compilations: Compilations | None,
    call: Callable[..., dict[str, Any]],
    job: tuple[Any, ...],
    progress: Progress | None,
) -> CompileReport:
    if compilations is None:
        with Compilations() as own:
            return _reported(own, call, job, progress)
    return CompileReport.from_message(compilations.run(call, *job, progress=progress))


def compile_job(
    source: str, target: str, options: dict[str, Any], progress: Progress
) -> dict[str, Any]:
    """Run `compile_model` on messages."""
    from popgate_onnx.compiler.compile import compile_model

    given = CompileOptions.from_message(options)
    return compile_model(Path(source), Path(target), given, progress).to_message()


def fuse_job(
    sources: list[list[str]],
    target: str,
    selector: str,
    options: dict[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    """Run `compile_fused` on messages."""
    from popgate_onnx.compiler.compile import compile_fused

    named = [(name, Path(path)) for name, path in sources]
    given = CompileOptions.from_message(options)
    report = compile_fused(named, Path(target), selector, given, progress)
    return report.to_message()


# -- in the process


def _work(stdin: int, stdout: int, owner: int) -> None:
    """Do the job that `stdin` describes."""
    die_with(owner)
    with os.fdopen(stdin, "rb") as given_in:
        seconds, memory, module, name, given = json.load(given_in)
    _limit(seconds, memory)
    call = getattr(importlib.import_module(module), name)
    # Libraries may print to standard output. Redirect it, so their lines are not taken
    # for ours.
    with os.fdopen(stdout, "wb", buffering=0) as out:
        os.dup2(2, 1)

        def say(message: dict[str, Any]) -> None:
            out.write(json.dumps(message).encode() + b"\n")

        def progress(stage: str, done: float) -> None:
            say({"stage": stage, "done": done})

        try:
            say({"result": call(*given, progress)})
        except MemoryError:
            say({"error": MemoryError.__name__})
        except OSError as error:
            name = None if error.filename is None else os.fspath(error.filename)
            said = {"errno": error.errno, "message": error.strerror or str(error)}
            say({"error": OSError.__name__, "file": name, **said})
        except Exception as error:
            if "bad_alloc" in str(error) or "allocate memory" in str(error):
                say({"error": MemoryError.__name__})
                return
            if not isinstance(error, EngineError):
                _log.exception("compiling")
            report = ErrorReport.of(error)
            say({"error": report.error, "message": report.message})


def _limit(seconds: float, memory: int) -> None:
    """Set limits that the owner would enforce later or could not observe."""
    threads = os.cpu_count() or 1
    for what, most in (
        # This counts private, writable memory only, so not the mapped files.
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_CPU, math.ceil(seconds * threads) + 1),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        most = min(most, sys.maxsize)
        resource.setrlimit(what, (most, most))
