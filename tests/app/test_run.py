"""The process of a gateway, from the outside.

Covers: app/server_process.py.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from app.http.server import SIGNAL_APART
from tests.app.http.connection.test_protocol import SLOW
from tests.app.served import POPGATE, ROOT, ServedGateway
from tests.engine import models
from tests.support import FOR_EVER, WAIT, accepts, until

#: What /metrics says while one request to the slow model runs.
RUNNING = 'popgate_requests_in_flight{model="slow",version="1"} 1'


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
        assert process.stderr is not None
        # An attempt that is refused would leave httpx a socket that it does not close.
        until(lambda: accepts(address))
        transport = httpx.HTTPTransport(verify=False, uds=address)
        with (
            socket.socket(socket.AF_UNIX) as client,
            httpx.Client(transport=transport, base_url="http://x") as other,
        ):
            until(lambda: other.get("/v1/health/ready").status_code == 200)
            client.connect(address)
            body = b'{"inputs": {"count": %d}}' % FOR_EVER
            client.sendall(SLOW + b"%d\r\n\r\n" % len(body) + body)
            until(lambda: RUNNING in other.get("/metrics").text)
            process.send_signal(signal.SIGTERM)
            while "shutting down" not in process.stderr.readline():
                pass
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2 * SIGNAL_APART)  # closer together they are one
            process.send_signal(signal.SIGTERM)  # the second ends it at once
            assert process.wait(WAIT) == 1  # while its client still waits
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
