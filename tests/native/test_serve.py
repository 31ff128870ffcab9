"""`python -m native.serve`: the server answers at once, compiling is beside it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from native import popgate_compiled as finder
from tests.app.served import ROOT
from tests.support import WAIT, until


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_it_becomes_the_server(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "digits" / "digits.onnx", tmp_path)
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "native.serve", "--url", url, "--no-compile", "--"]
    command += ["-m", str(tmp_path), "--port", url.rpartition(":")[2]]
    server = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "POPGATE_POOL": f"serve-{os.getpid()}"}
    )
    try:
        assert wait_for(server.pid, url)
    finally:
        server.terminate()
    assert server.wait(WAIT) == 0


def wait_for(pid: int, url: str) -> bool:
    """What the compiling process waits for, in a process of its own."""
    code = "import sys; from native.build import wait_for_server as wait; "
    code += "sys.exit(not wait(int(sys.argv[1]), sys.argv[2]))"
    command = [sys.executable, "-c", code, str(pid), url]
    return subprocess.run(command, cwd=ROOT, timeout=WAIT, check=False).returncode == 0


def test_nothing_is_compiled_for_a_server_that_ends() -> None:
    with subprocess.Popen(["sleep", "300"]) as server:
        url = f"http://127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "native.build", "--if-possible"]
        command += ["--beside", str(server.pid), "--url", url]
        before = finder.read_stamp(str(ROOT))
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as builder:
            server.terminate()
            said, _ = builder.communicate(timeout=WAIT)
        assert (builder.returncode, said) == (0, b"")
        assert finder.read_stamp(str(ROOT)) == before


def test_compiling_ends_with_its_server() -> None:
    """`end_with` ends what the process has started, too."""
    code = (
        "import os, subprocess, sys; from native.build import end_with; "
        "end_with(int(sys.argv[1])); child = subprocess.Popen(['sleep', '300']); "
        "print(child.pid, flush=True); subprocess.run(['sleep', '300'])"
    )
    with subprocess.Popen(["sleep", "300"]) as server:
        builder = subprocess.Popen(
            [sys.executable, "-c", code, str(server.pid)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert builder.stdout is not None
        child = int(builder.stdout.readline())
        server.terminate()
        builder.wait(WAIT)
        builder.stdout.close()

    def is_gone() -> bool:
        try:
            state = Path(f"/proc/{child}/stat").read_text().split()[2]
        except OSError:
            return True
        return state == "Z"

    until(is_gone, "the child of the compiling process goes on")
