"""System calls of one request in the main threads of both processes, by strace."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

from bench import calls
from bench.cases.scenarios import Scenario
from bench.counts.cases import requests, send_asleep, served, variables
from bench.servers.server import HOST, Server


def can_trace() -> bool:
    """Return whether strace is installed."""
    return shutil.which("strace") is not None


def system_calls(
    cases: Sequence[Scenario], *, compiled: bool
) -> dict[str, dict[str, dict[str, int]]]:
    """Count the system calls of both main threads, by case, process and name.

    A call that happens in fewer than half of the requests belongs to no request.
    """
    with served(cases, variables(compiled=compiled)) as server:
        return {case.name: traced(server, requests(case)) for case in cases}


def traced(server: Server, sent: Sequence[bytes]) -> dict[str, dict[str, int]]:
    """Send requests twice for each process, one at a time. Count the second time."""
    (device,) = server.device_pids()
    found = {}
    with socket.create_connection((HOST, server.port)) as connection:
        calls.send(connection, sent)
        for process, pid in (("gateway", server.pid), ("device", device)):
            command = ["strace", "-c", "-U", "calls,name", "-p", str(pid)]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
                assert strace.stderr is not None
                if "attached" not in (line := strace.stderr.readline()):
                    sys.exit(f"strace: {line.strip()}")
                send_asleep(connection, sent, (server.pid, device))
                strace.send_signal(signal.SIGINT)
                found[process] = _summary(strace.stderr.read(), len(sent))
    return found


def _summary(text: str, number: int) -> dict[str, int]:
    lines = re.findall(r"^\s*(\d+) ([a-z_0-9]+)$", text, re.MULTILINE)
    counts = Counter({name: int(n) for n, name in lines if name != "total"})
    return {
        name: round(n / number) for name, n in sorted(counts.items()) if n >= number / 2
    }
