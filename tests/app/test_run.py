"""The process of a gateway, from the outside.

Covers: app/server_process.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.app.http.connection.test_protocol import SLOW
from tests.app.served import POPGATE, ROOT, ServedGateway
from tests.engine import models
from tests.support import WAIT


def test_it_ends_without_a_standard_output(tmp_path: Path) -> None:
    models.slow(tmp_path / "slow.popef")
    address = str(tmp_path / "socket")
    serve = [*POPGATE, "serve", "--model-repository", str(tmp_path), "--uds", address]
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" >&-', "sh", *serve],
        cwd=ROOT,
        env={**os.environ, "POPGATE_POOL": f"test-run-{os.getpid()}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with socket.socket(socket.AF_UNIX) as client:
            while client.connect_ex(address):
                assert process.poll() is None
            body = b'{"inputs": {"count": 100000000}}'
            status = b"503"
            while status == b"503":  # until the model is loaded, and runs
                with socket.socket(socket.AF_UNIX) as asking:
                    asking.connect(address)
                    asking.settimeout(2.0)
                    asking.sendall(SLOW + b"%d\r\n\r\n" % len(body) + body)
                    try:
                        status = asking.recv(100).split()[1]
                    except TimeoutError:
                        status = b""
            client.sendall(SLOW + b"%d\r\n\r\n" % len(body) + body)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            process.send_signal(signal.SIGTERM)  # the second ends it at once
        assert process.wait(WAIT) == 1
        assert process.stderr is not None
        assert "stdout" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


BLOCKING = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_what_its_starter_blocked_ends_it_all_the_same(tmp_path: Path) -> None:
    """And reaches its workers and devices; as some supervisors start what they run."""
    models.affine(tmp_path / "affine.popef")
    before = (sys.executable, "-c", BLOCKING)
    with ServedGateway(tmp_path, "--workers", "2", before=before) as gateway:
        gateway.wait_ready()
        pid = gateway.process.pid
        tasks = Path(f"/proc/{pid}/task").iterdir()
        found = [(task / "children").read_text().split() for task in tasks]
        children = [child for some in found for child in some]
        assert len(children) >= 3
        for one in (str(pid), *children):
            status = Path(f"/proc/{one}/status").read_text()
            blocked = next(line for line in status.splitlines() if "SigBlk" in line)
            assert int(blocked.split()[1], 16) == 0, one
        assert gateway.stop() == 0


def test_too_few_descriptors_are_told(tmp_path: Path) -> None:
    few = ("sh", "-c", 'ulimit -n 16; exec "$@"', "sh")
    done = subprocess.run(
        [*few, *POPGATE, "serve", "-m", str(tmp_path), "--port", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "may open 16 files" in line
    assert done.stdout == ""
