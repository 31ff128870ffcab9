"""A pytest plugin: fail each test that leaves threads or descriptors behind.

What fixtures of a module or of the session open stays allowed as long as they live.
Processes and `/dev/shm` are looked at once, at the end of the run. Servers that many
tests share start their devices again as they need them, and names in `/dev/shm` have
no owner. Of sockets only those of the machine count: HTTP clients that many tests share
connect as they need it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from tests import warm

T = TypeVar("T")

#: Seconds that a process may take to end after its owner has let go.
PATIENCE = 30.0
#: Threads that a process starts once, when it needs them first, and keeps.
KEPT_THREADS = {
    "popgate-copy",
    "popgate-tokenize_0",
    "popgate-tokenize_1",
    "tqdm_monitor",
}
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds: descriptors by kind, threads by name."""

    counts: Counter[str]

    def beyond(self, allowed: Counter[str]) -> Counter[str]:
        return self.counts - allowed


class LeakCheck:
    """Compares what is held before a test with what is held behind its teardown."""

    def __init__(self) -> None:
        self._allowed: Counter[str] = Counter()
        #: What was held behind the test before, where that is known.
        self._held: Held | None = None
        self._is_keeping = False
        self._failed = False
        self._left: list[str] = []
        self._shared_memory = _shared_memory()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        self._allowed = (self._held or look()).counts
        self._held = None
        self._failed = False
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._failed |= report.failed
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        with self.keeping():
            return (yield)

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Allow what is opened in the block to stay open behind the test."""
        if self._is_keeping:
            yield
            return
        before = look()
        self._is_keeping = True
        try:
            yield
        finally:
            self._is_keeping = False
            self._allowed += look().beyond(before.counts)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        result = yield
        # A failed test's frames live on in its report, with all that they hold.
        if self._failed:
            return result
        self._held = look()
        if self._held.beyond(self._allowed):
            self._held = None
            if left := left_over(self._allowed):
                pytest.fail(f"the test leaves behind: {_listed(left)}", pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(
        self, session: pytest.Session
    ) -> Generator[None, object, object]:
        """Look at what a worker has started, and tell its controller."""
        # What a run that stops early has set up is torn down here.
        result = yield
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["left"] = _wait_for(lambda: sorted(_processes()))
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._left += getattr(node, "workeroutput", {}).get("left", [])

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if hasattr(config, "workeroutput"):
            return
        # What was forked for workers has no other parent that looks at it.
        self._left += _wait_for(lambda: sorted(_processes()))
        # Other programs of the machine make and remove names there too.
        new = _wait_for(lambda: _shared_memory() - self._shared_memory - _mapped())
        if left := [*self._left, *sorted(new)]:
            pytest.exit(f"the tests leave behind: {', '.join(left)}", returncode=1)


def pytest_configure(config: pytest.Config) -> None:
    # libuv opens a pipe with the first loop of a process and keeps it. gevent, which
    # Triton's client runs on, keeps its first loop.
    uvloop.new_event_loop().close()
    with contextlib.suppress(ImportError):
        importlib.import_module("gevent").get_hub()
    config.pluginmanager.register(_CHECK, "leaks")
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        warm.start_all()


def left_over(allowed: Counter[str]) -> Counter[str]:
    """Return what is held beyond `allowed`, once what is ending has had time to end."""
    # A thread that ends needs no collection, which takes longer than most tests.
    if not _wait_for(lambda: look().beyond(allowed), 0.05):
        return Counter()
    gc.collect()
    return _wait_for(lambda: look().beyond(allowed))


def _wait_for(look: Callable[[], T], patience: float = PATIENCE) -> T:
    """Return what `look` finds: nothing, or what is still there when time is up."""
    end = time.monotonic() + patience
    pause = 0.01  # longer each time, because looking takes processor time
    while (left := look()) and time.monotonic() < end:
        threading.Event().wait(pause)
        pause = min(pause * 1.5, 0.2)
    return left


def look() -> Held:
    """Return what this process holds now."""
    counts = Counter(_descriptors())
    names = (thread.name for thread in threading.enumerate())
    counts.update(f"thread {name}" for name in names if name not in KEPT_THREADS)
    return Held(counts)


def _descriptors() -> Iterator[str]:
    kept = resource_tracker._resource_tracker._fd  # type: ignore[attr-defined]
    for name in os.listdir("/proc/self/fd"):
        if name == str(kept):
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # that of this listing
        kind, colon, _ = target.partition(":[")
        if kind != "socket":
            # A file that is unlinked while it is open is the same file as before.
            target = target.removesuffix(" (deleted)")
            yield f"descriptor {kind}" if colon else f"descriptor {target}"
        elif _is_local(int(name)):
            yield "descriptor of a local socket"


def _is_local(fd: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as found:
            return found.family == socket.AF_UNIX
    except OSError:
        return False


def _processes() -> Iterator[str]:
    """Give all descendants but those from which the tests fork, and the dead."""
    forkers = {*warm.forkers(), resource_tracker._resource_tracker._pid}  # type: ignore[attr-defined]
    waiting = [os.getpid()]
    while waiting:
        parent = waiting.pop()
        for child in _children(parent):
            waiting.append(child)
            if child not in forkers and (command := _command(child)):
                yield f"process {child} ({command})"


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{task}/children").read_text()
            found += map(int, text.split())
    except OSError:
        pass  # it has ended
    return found


def _command(pid: int) -> str:
    """Return a process's command; the empty string if it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return "" if state == "Z" else line.replace(b"\0", b" ").decode()[:120]


def _shared_memory() -> set[str]:
    return {entry.name for entry in SHARED_MEMORY.iterdir()}


def _mapped() -> set[str]:
    """Return the names in `/dev/shm` that any process on the machine still maps."""
    names = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:
            continue
        for line in text.splitlines():
            _, found, name = line.partition(f"{SHARED_MEMORY}/")
            if found:
                names.add(name.removesuffix(" (deleted)"))
    return names


def _listed(left: Counter[str]) -> str:
    return ", ".join(f"{name} x{n}" if n > 1 else name for name, n in left.items())


#: The check of this process.
_CHECK = LeakCheck()
#: A block for what a module's fixture opens only when a test asks for it.
keeping = _CHECK.keeping
