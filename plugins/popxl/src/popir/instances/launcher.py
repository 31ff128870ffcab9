"""Start the instances of a program on this machine, and end them together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Literal, TypeAlias

from popir.instances.identity import COUNT, INDEX, IPUS, LAUNCHER, MEMORY, REPLICAS
from popir.instances.shared_memory import InstanceMemory, create

#: Seconds between two signals, in which instances can end.
GRACE = 0.7
#: Bytes of an instance's hidden error output that are kept in case it fails.
_KEPT = 1 << 16
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

Output: TypeAlias = Literal["shown", "tagged", "kept"]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Plan of the processes to start."""

    command: Sequence[str]
    instances: int
    replicas: int
    ipus_per_replica: int = 1
    only_output_from: int | None = None
    tagged: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment, added to those of this process."""

    def output_of(self, index: int) -> Output:
        """Return where the output of an instance goes."""
        if self.only_output_from not in (None, index):
            return "kept"
        return "tagged" if self.tagged else "shown"


@dataclass(eq=False, slots=True)
class _Running:
    index: int
    process: subprocess.Popen[bytes]
    pidfd: int
    kept: bytearray = field(default_factory=bytearray)
    """The end of its hidden error output."""
    code: int | None = None


def environment(plan: LaunchPlan) -> dict[str, str]:
    """Return the variables that tell instances about the whole program."""
    return {
        **os.environ,
        COUNT: str(plan.instances),
        REPLICAS: str(plan.replicas),
        IPUS: str(plan.ipus_per_replica),
        "POPDIST_NUM_LOCAL_REPLICAS": str(plan.replicas // plan.instances),
        **plan.variables,
    }


def launch(plan: LaunchPlan) -> int:
    """Run the instances of `plan`; return the exit code.

    If one fails, or a signal arrives, all end: SIGTERM (for Ctrl-C SIGINT first), then
    SIGKILL. Must be called in the main thread.
    """
    descriptor = create(plan.instances)
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    memory = InstanceMemory(path, 0, plan.instances)
    common = environment(plan) | {MEMORY: path, LAUNCHER: str(os.getpid())}
    with contextlib.ExitStack() as stack:
        watch = _Watch(stack, plan, memory)
        try:
            for index in range(plan.instances):
                watch.start(index, common)
            return watch.run()
        finally:
            watch.kill()
            memory.close()
            os.close(descriptor)


class _Watch:
    """Waits for instances, their output and signals."""

    def __init__(
        self, stack: contextlib.ExitStack, plan: LaunchPlan, memory: InstanceMemory
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._running: list[_Running] = []
        self._signals = stack.enter_context(_signals_by_pipe())
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signal)
        self._code: int | None = None
        """The exit code of the whole, once all must end."""
        self._next: list[signal.Signals] = []
        self._deadline = 0.0

    def start(self, index: int, common: Mapping[str, str]) -> None:
        """Start instance `index`."""
        plan = self._plan
        local = plan.replicas // plan.instances
        variables = {
            INDEX: str(index),
            "POPDIST_REPLICA_INDEX_OFFSET": str(index * local),
        }
        output = plan.output_of(index)
        out = {"shown": None, "tagged": subprocess.PIPE, "kept": subprocess.DEVNULL}
        process = subprocess.Popen(
            plan.command,
            stdin=None if index == 0 else subprocess.DEVNULL,
            stdout=out[output],
            stderr=None if output == "shown" else subprocess.PIPE,
            env={**common, **variables},
            process_group=0,
            preexec_fn=_die_with_parent,
        )
        running = _Running(index, process, os.pidfd_open(process.pid))
        self._running.append(running)
        read = selectors.EVENT_READ
        self._selector.register(running.pidfd, read, lambda: self._on_end(running))
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                taking = self._taking(running, name, pipe, output == "kept")
                self._selector.register(pipe, read, taking)

    def run(self) -> int:
        """Wait until all have ended."""
        while any(each.code is None for each in self._running):
            timeout = None
            if self._next:
                timeout = max(self._deadline - time.monotonic(), 0)
            events = self._selector.select(timeout)
            for key, _ in events:
                key.data()
            if self._next and time.monotonic() >= self._deadline:
                self._signal(self._next.pop(0))
                self._deadline = time.monotonic() + GRACE
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not self._signals:
                key.data()
        return self._code or 0

    def kill(self) -> None:
        """Kill the remaining instances, with all processes that they started."""
        self._signal(signal.SIGKILL)
        for each in self._running:
            with contextlib.suppress(OSError):
                os.close(each.pidfd)
            each.process.wait()

    def _end(self, code: int, *signals: signal.Signals) -> None:
        if self._code is None:
            self._code = code
            self._next = [*signals, signal.SIGKILL]
            self._deadline = time.monotonic()

    def _signal(self, number: signal.Signals) -> None:
        for each in self._running:
            # Signal the process group, which outlives the instance, to reach its
            # children.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.process.pid, number)

    def _on_signal(self) -> None:
        for number in os.read(self._signals, 16):
            first = [signal.SIGINT] if number == signal.SIGINT else []
            if self._code is not None:
                self._next = [signal.SIGKILL]
                self._deadline = time.monotonic()
            self._end(128 + number, *first, signal.SIGTERM)

    def _on_end(self, running: _Running) -> None:
        self._selector.unregister(running.pidfd)
        running.code = code = running.process.wait()
        if code == 0 or self._code is not None:
            self._memory.leave([running.index])
            return
        how = f"exit code {code}" if code > 0 else _signal_name(-code)
        others = "; the other instances were ended" if self._plan.instances > 1 else ""
        if running.kept:
            sys.stderr.buffer.write(bytes(running.kept))
        sys.stderr.write(f"poprun: instance {running.index} ended with {how}{others}\n")
        sys.stderr.flush()
        # End all at once, before other instances report errors that this one caused.
        self._signal(signal.SIGTERM)
        self._end(code if code > 0 else 128 - code)
        self._deadline += GRACE

    def _taking(
        self, running: _Running, name: str, pipe: IO[bytes], kept: bool
    ) -> _Taking:
        return _Taking(self._selector, running, name, pipe, kept)


class _Taking:
    """Reads a pipe of an instance, line by line."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        running: _Running,
        name: str,
        pipe: IO[bytes],
        kept: bool,
    ) -> None:
        self._selector = selector
        self._running = running
        self._pipe = pipe
        self._kept = kept
        self._tag = f"[1,{running.index}]<{name}>:".encode()
        self._into = sys.stdout.buffer if name == "stdout" else sys.stderr.buffer
        self._rest = b""

    def __call__(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data = os.read(self._pipe.fileno(), 1 << 16)
                if not data:
                    self._selector.unregister(self._pipe)
                    self._write(b"\n" if self._rest else b"")
                    return
                self._write(data)

    def _write(self, data: bytes) -> None:
        if self._kept:
            self._running.kept += data
            del self._running.kept[:-_KEPT]
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._into.write(self._tag + line + b"\n")
        self._into.flush()


def _die_with_parent() -> None:
    """Ask the kernel to kill the new process if this one ends first."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _signals_by_pipe() -> Iterator[int]:
    """Yield the end of a pipe that delivers the numbers of signals; then restore the
    handlers.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(reading, False)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, lambda *_: None) for n in numbers}
    earlier = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(earlier)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
