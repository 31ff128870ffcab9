"""Programs for the original that fork: pools of workers, servers that load first."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]

PRELUDE = """
import gc, multiprocessing, os, signal, socket, sys, threading
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import model_runtime, popef, popef_io
path = sys.argv[1]
"""


def run(script: str, path: str) -> str:
    """What the script prints; it must end well and complain of nothing."""
    options = ["-W", "error::ResourceWarning", "-W", "ignore::DeprecationWarning"]
    ended = subprocess.run(
        [sys.executable, *options, "-c", PRELUDE + textwrap.dedent(script), path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert not ended.stderr, ended.stderr
    assert ended.returncode == 0
    return ended.stdout


EXECUTES = """
def given(number):
    array = np.full((3, 4), number, np.float32)
    return {"tensor_A": array, "tensor_B": array}

def execute(number):
    try:
        return float(runner.execute(given(number))["output"].max())
    except RuntimeError as error:
        return type(error).__name__

def make_own():
    global runner
    config = model_runtime.ModelRunnerConfig()  # another one's device may be ending
    config.device_wait_config = model_runtime.DeviceWaitConfig(60, 0.01)
    runner = model_runtime.ModelRunner(path, config)

runner = model_runtime.ModelRunner(path)
right = [execute(n) for n in range(8)]
fork = multiprocessing.get_context("fork")
"""


def test_pools_of_workers_that_were_forked(simple: str) -> None:
    script = """
    with fork.Pool(2) as pool:
        assert pool.map(execute, range(8)) == ["WrongProcess"] * 8
        assert [execute(n) for n in range(8)] == right
    with ProcessPoolExecutor(2, fork) as pool:
        assert list(pool.map(execute, range(8))) == ["WrongProcess"] * 8
    process = fork.Process(target=execute, args=(1,))
    process.start()
    assert [execute(n) for n in range(8)] == right
    process.join()
    assert process.exitcode == 0
    with fork.Pool(1, make_own) as pool:
        assert pool.map(execute, range(8)) == right
    with ProcessPoolExecutor(1, fork, make_own) as pool:
        assert list(pool.map(execute, range(8))) == right
    assert [execute(n) for n in range(8)] == right
    print("well")
    """
    assert run(EXECUTES + textwrap.dedent(script), simple) == "well\n"


def test_a_server_that_loads_before_it_forks(simple: str) -> None:
    """One worker makes a runner of its own, the other is told to; both outlive the
    parent, whose device is then free."""
    script = """
    def serve(own):
        if own:
            make_own()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            os.write(told, f"{os.getpid()} {port}\\n".encode())
            while True:
                connection, _ = listener.accept()
                with connection:
                    number = int(connection.recv(100))
                    connection.sendall(str(execute(number)).encode())

    def ask(port, number):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(str(number).encode())
            return connection.recv(100).decode()

    del runner  # there are two devices
    gc.collect()
    reads, told = os.pipe()
    master = os.fork()
    if master == 0:
        os.close(reads)
        make_own()  # as an application does when it is imported
        for own in (True, False):
            if os.fork() == 0:
                serve(own)
        signal.pause()
    os.close(told)
    with os.fdopen(reads) as lines:
        workers = dict(map(int, lines.readline().split()) for _ in range(2))
        try:
            said = {ask(port, 3): port for port in workers.values()}
            assert set(said) == {str(right[3]), "WrongProcess"}, said
            os.kill(master, signal.SIGKILL)
            os.waitpid(master, 0)
            assert all(ask(port, 3) == text for text, port in said.items())
            make_own()
            assert execute(3) == right[3]
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
    print("well")
    """
    assert run(EXECUTES + textwrap.dedent(script), simple) == "well\n"


def test_a_file_that_a_parent_writes_is_the_parents(tmp_path: Path) -> None:
    script = """
    writer = popef.Writer(path)
    blob = writer.createOpaqueBlob("notes")
    blob.write(b"the ")
    for end in ("drops", "writes", "closes", "exits"):
        if os.fork() == 0:
            if end == "drops":
                del writer, blob
                gc.collect()
            try:
                if end == "writes":
                    blob.write(b"child's " * 100000)
                if end == "closes":
                    writer.close()
            except popef_io.PopefError as error:
                assert f"forked process {os.getpid()} must open" in str(error)
            else:
                assert end in ("drops", "exits")
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0, end
        assert not os.path.exists(path), end
    blob.write(b"parent's")
    writer.close()
    reader = popef.Reader()
    reader.parseFile(path)
    [found] = reader.opaqueBlobs()
    print(bytes(found.data()).decode())
    """
    assert run(script, str(tmp_path / "m.popef")) == "the parent's\n"
