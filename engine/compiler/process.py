"""Compiling in a process of its own, with limits of time and memory.

A model may be made to compile for ever, to take all memory, or to crash what runs it:
the compiler loads it into ONNX Runtime and runs it. What such a model can do in here
ends with this process, which ends with its owner, at the latest.

`Compilations.run` is the owner's side. The name of a function and its arguments go over
as JSON; so does what comes back, a line each: `{"stage", "done"}`, and at the end
`{"result"}` or an error as in control messages (`engine.transport.control.from_error`).
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
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.compiler.options import CompileOptions, CompileReport, Progress
from engine.errors import EngineError, InvalidModel, RunnerClosed
from engine.owner import die_with, environment
from engine.transport import control

_log = logging.getLogger(__name__)

#: Seconds that compiling one model may take.
DEFAULT_SECONDS = 600.0
#: The part of the machine's memory that compiling one model may take.
_MEMORY_PART = 0.75
# Not `-m`: this module is one of those that its package imports.
_START = f"import sys; from {__name__} import main; main(sys.argv[1:])"
_READ = 1 << 16
_MOST_RESULT = 64 << 20
"""Bytes that a compiler may have to say."""


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """What compiling one model may take: seconds, and bytes of memory (0: three
    quarters of the machine's)."""

    seconds: float = DEFAULT_SECONDS
    memory: int = 0

    @property
    def bytes(self) -> int:
        if self.memory:
            return self.memory
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return int(pages * size * _MEMORY_PART)


class Compilations:
    """The compilations that run now. Thread-safe. `close` ends them all."""

    def __init__(self, limits: CompileLimits | None = None) -> None:
        self._limits = limits or CompileLimits()
        # A signal handler may close while it is being closed.
        self._lock = threading.RLock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def run(
        self,
        call: Callable[..., Any],
        *arguments: Any,
        progress: Progress | None = None,
    ) -> Any:
        """`call(*arguments, progress)` in a process of its own, and what it returns.

        The function is one of a module; JSON must be able to hold the rest. Blocks.
        Raises the engine's errors that it raises, OSError, and InvalidModel if it
        takes longer or more memory than it may, or crashes.
        """
        job = json.dumps([call.__module__, call.__name__, arguments]).encode()
        with self._process() as (process, owner):
            return self._wait(process, job, progress or _silent, owner)

    def close(self) -> None:
        """End what runs; from now on everything is refused."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    @contextlib.contextmanager
    def _process(self) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        read_end, owner = os.pipe()
        try:
            with self._lock:
                if self._closed:
                    raise RunnerClosed("the compiler is shut down")
                process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-c", _START),
                        *(str(read_end), str(self._limits.seconds)),
                        str(self._limits.bytes),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=[read_end],
                    env=environment(),
                )
                self._running.add(process)
            try:
                with process:
                    try:
                        yield process, owner
                    finally:
                        process.kill()
            finally:
                with self._lock:
                    self._running.discard(process)
        finally:
            os.close(read_end)
            os.close(owner)

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        job: bytes,
        progress: Progress,
        owner: int,
    ) -> Any:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(job)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        deadline = time.monotonic() + self._limits.seconds
        stage = "starting"
        for line in _lines(process, deadline):
            said = json.loads(line)
            if "stage" in said:
                stage = str(said["stage"])
                progress(stage, float(said["done"]))
            elif "result" in said:
                return said["result"]
            elif said["error"] == OSError.__name__:
                raise OSError(said["errno"], said["message"], said["file"])
            elif said["error"] == MemoryError.__name__:
                raise self._refuse(f"takes more memory than {self._memory}", stage)
            else:
                raise control.to_error(said)
        if self._closed:
            raise RunnerClosed("compiling was cancelled: the compiler is shut down")
        if time.monotonic() >= deadline:
            seconds = f"{self._limits.seconds:g} s"
            raise self._refuse(f"takes longer than {seconds}", stage)
        process.wait()
        raise self._refuse(f"crashes the compiler ({_ending(process)})", stage)

    @property
    def _memory(self) -> str:
        return f"{self._limits.bytes / (1 << 30):.3g} GiB"

    def _refuse(self, what: str, stage: str) -> InvalidModel:
        return InvalidModel(f"it {what} to compile; that was while {stage}")

    def __repr__(self) -> str:
        return f"<Compilations {len(self._running)} running, {self._limits}>"


def _ending(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[bytes]:
    """What it writes, until it ends or the deadline has passed."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    rest = b""
    while (left := deadline - time.monotonic()) > 0:
        if not poller.poll(left * 1000):
            return
        part = os.read(descriptor, _READ)
        if not part or len(rest) > _MOST_RESULT:
            return
        *whole, rest = (rest + part).split(b"\n")
        yield from whole


def _silent(stage: str, done: float) -> None:
    """No one wants to know."""


# -- what is run there


def compile_in_process(
    source: Path,
    target: Path,
    options: CompileOptions,
    progress: Progress | None = None,
    limits: CompileLimits | None = None,
) -> CompileReport:
    """`compile_model` in a process of its own. Raises what `Compilations.run` does."""
    job = str(source), str(target), options.to_message()
    found = Compilations(limits).run(compile_job, *job, progress=progress)
    return CompileReport.from_message(found)


def fuse_in_process(
    sources: Sequence[tuple[str, Path]],
    target: Path,
    selector: str,
    options: CompileOptions,
    progress: Progress | None = None,
    limits: CompileLimits | None = None,
) -> CompileReport:
    """`compile_fused` in a process of its own. Raises what `Compilations.run` does."""
    named = [[name, str(path)] for name, path in sources]
    job = named, str(target), selector, options.to_message()
    found = Compilations(limits).run(fuse_job, *job, progress=progress)
    return CompileReport.from_message(found)


def compile_job(
    source: str, target: str, options: dict[str, Any], progress: Progress
) -> dict[str, Any]:
    """`compile_model` on messages."""
    from engine.compiler.compile import compile_model

    given = CompileOptions.from_message(options)
    return compile_model(Path(source), Path(target), given, progress).to_message()


def fuse_job(
    sources: list[list[str]],
    target: str,
    selector: str,
    options: dict[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    """`compile_fused` on messages."""
    from engine.compiler.compile import compile_fused

    named = [(name, Path(path)) for name, path in sources]
    given = CompileOptions.from_message(options)
    report = compile_fused(named, Path(target), selector, given, progress)
    return report.to_message()


# -- in the process


def main(arguments: list[str]) -> None:
    """Does the job and ends the process, in which threads of a model may still run."""
    _work(arguments)
    sys.stderr.flush()
    os._exit(0)


def _work(arguments: list[str]) -> None:
    owner, seconds, memory = int(arguments[0]), float(arguments[1]), int(arguments[2])
    die_with(owner)
    _limit(seconds, memory)
    module, name, given = json.loads(sys.stdin.buffer.read())
    call = getattr(importlib.import_module(module), name)
    # What is printed by others must not be taken for ours.
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
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
            say(control.from_error(error))


def _limit(seconds: float, memory: int) -> None:
    """What the owner would end later, and what it could not see."""
    threads = os.cpu_count() or 1
    for what, most in (
        # Private memory that can be written to: files that are mapped do not count.
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_CPU, math.ceil(seconds * threads) + 1),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(what, (most, most))
