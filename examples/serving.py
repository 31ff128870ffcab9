"""Compile ONNX files and serve them while a ``with`` block runs.

What `popgate compile` and `popgate serve` do in a shell, for the examples that bring
their own model.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

START_TIMEOUT = 60.0  # seconds
STOP_TIMEOUT = 30.0  # seconds


@contextmanager
def serve(models: Mapping[str, Path], *options: str) -> Iterator[str]:
    """Serve ONNX files under the given names; the value is the gateway's URL.

    The compiled models live in a temporary folder. `options` go to ``popgate serve``.
    Raises subprocess.CalledProcessError if a model cannot be compiled, RuntimeError
    if the gateway ends before it is ready, TimeoutError if it is not ready in time.
    """
    with TemporaryDirectory() as name:
        repository = Path(name)
        for model, onnx_file in models.items():
            target = repository / f"{model}.popef"
            compile_command = [popgate(), "compile", str(onnx_file), "-o", str(target)]
            subprocess.run(compile_command, check=True, stdout=sys.stderr)
        held = hold_free_port()
        port = held.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        serve_command = [popgate(), "serve", "--model-repository", name]
        serve_command += ["--port", str(port), *options]
        # A pool of devices of its own: another program may have the default one.
        environment = {**os.environ, "POPGATE_POOL": f"examples-{os.getpid()}-{port}"}
        process = subprocess.Popen(serve_command, stdout=sys.stderr, env=environment)
        try:
            wait_until_ready(url, process)
            yield url
        finally:
            stop(process)
            held.close()


def popgate() -> str:
    """Return the path of the command that is installed with this Python."""
    beside = Path(sys.executable).with_name("popgate")
    found = str(beside) if beside.exists() else shutil.which("popgate")
    if found is None:
        raise FileNotFoundError(
            "no popgate command; run in the checkout: pip install ."
        )
    return found


def hold_free_port() -> socket.socket:
    """Take a free port that nobody else is given, but that a server can listen on."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"popgate serve ended with status {process.returncode}")
        try:
            if httpx.get(f"{url}/v1/health/ready").is_success:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.05)
    raise TimeoutError(f"the gateway was not ready within {START_TIMEOUT:g} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
