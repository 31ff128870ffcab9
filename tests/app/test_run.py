"""The process of a gateway, from the outside.

Covers: app/server_process.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

from tests.app.http.test_protocol import SLOW
from tests.app.served import POPGATE, ROOT
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
