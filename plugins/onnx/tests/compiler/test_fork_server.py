"""Processes that are forked for one job each, and what ends with whom."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from popgate_onnx.compiler import Compilations, process
from popgate_onnx.compiler.fork_server import ForkServer
from tests.support import is_gone, until


def obey(stdin: int, stdout: int, owner: int) -> None:
    """A job for the forked process: ends as it is told to."""
    word = os.read(stdin, 100)
    os.write(stdout, b"%d" % os.getpid())
    if word == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == b"wait":
        os.read(owner, 1)
    os._exit(int(word.isdigit() and word))


def number(progress: Callable[[str, float], None]) -> int:
    """A job for `Compilations`: the process that it was forked from."""
    return os.getppid()


@pytest.fixture
def server() -> Iterator[ForkServer]:
    made = ForkServer(__name__, obey.__name__, [])
    yield made
    made.close()


class Pipes:
    """Of one job: what it reads, what it writes, and what it waits for."""

    def __init__(self) -> None:
        (self.stdin, self.tell), (self.read, self.stdout) = os.pipe(), os.pipe()
        self.owned, self.owner = os.pipe()

    def begin(self, server: ForkServer, word: bytes) -> int:
        os.write(self.tell, word)
        return server.fork(self.stdin, self.stdout, self.owned)

    def close(self) -> None:
        for each in vars(self).values():
            os.close(each)


@pytest.fixture
def pipes() -> Iterator[Callable[[], Pipes]]:
    with contextlib.ExitStack() as stack:

        def make() -> Pipes:
            made = Pipes()
            stack.callback(made.close)
            return made

        yield make


def test_each_job_is_a_process_whose_end_is_told(
    server: ForkServer, pipes: Callable[[], Pipes]
) -> None:
    for word, code in ((b"0", 0), (b"7", 7), (b"crash", -signal.SIGSEGV)):
        job = pipes()
        child = job.begin(server, word)
        assert os.read(job.read, 100) == b"%d" % child
        assert server.wait(child) == code
        assert is_gone(child)


def test_several_run_at_once(server: ForkServer, pipes: Callable[[], Pipes]) -> None:
    waiting = pipes()
    first = waiting.begin(server, b"wait")
    assert os.read(waiting.read, 100) == b"%d" % first
    assert server.wait(pipes().begin(server, b"3")) == 3
    os.write(waiting.owner, b"x")
    assert server.wait(first) == 0


def test_it_has_one_thread_once_the_compiler_is_imported(
    pipes: Callable[[], Pipes],
) -> None:
    server = ForkServer(__name__, obey.__name__, ["popgate_onnx.compiler.compile"])
    child = pipes().begin(server, b"wait")
    status = Path(f"/proc/{child}/status").read_text()
    parent = int(status.split("PPid:")[1].split()[0])
    assert len(os.listdir(f"/proc/{parent}/task")) == 1
    assert "onnxruntime" in Path(f"/proc/{parent}/maps").read_text()
    server.close()


def test_a_server_that_is_gone_is_an_error(
    server: ForkServer, pipes: Callable[[], Pipes]
) -> None:
    assert not server.has_ended
    server.close()
    assert server.has_ended
    with pytest.raises(OSError, match="descriptor"):
        pipes().begin(server, b"0")


def run(compilations: Compilations) -> Any:
    return compilations.run(number)


def test_jobs_share_a_server_which_is_replaced_when_it_dies() -> None:
    with Compilations() as compilations:
        first = run(compilations)
        assert run(compilations) == first
        os.kill(first, signal.SIGKILL)
        until(lambda: is_gone(first))
        assert run(compilations) != first


def test_a_job_finds_the_libraries_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    # With this, tests start the server from nothing, as others do.
    monkeypatch.setenv("OTEL_PYTHON_LOG_LEVEL", "info")
    with Compilations() as compilations:
        maps = Path(f"/proc/{run(compilations)}/maps").read_text()
    assert "onnx_cpp2py_export" in maps
    assert "onnxruntime" in maps


def test_a_server_without_jobs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_IDLE", 0.0)
    with Compilations() as compilations:
        first = run(compilations)
        until(lambda: not Path(f"/proc/{first}").exists())
        assert run(compilations) != first


def test_a_server_ends_with_its_owner() -> None:
    code = (
        "import os, signal\n"
        "from popgate_onnx.compiler import Compilations\n"
        f"from {__name__} import run\n"
        "print(run(Compilations()), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == -signal.SIGKILL, found.stderr
    until(lambda: is_gone(int(found.stdout)))
