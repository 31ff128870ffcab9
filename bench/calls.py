"""Count the Python calls of a request in the gateway and in its device.

    python -m bench.calls
    python -m bench.calls --scenario M-binary --by-file

Serves the scenario's model as plain Python, sends its 256 differing requests twice, one
at a time on one connection, and counts the calls of our functions during the second
pass. `sys.setprofile` counts comprehensions and generator expressions as functions,
too. docs/explanation/architecture.md lists them step by step.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bench.cases.models import write_models
from bench.cases.scenarios import SCENARIOS, VARIED, Mode, Scenario
from bench.drivers.load import whole
from bench.servers.server import HOST, ROOT, Server, compile_models, gateway

#: Calls with which the reading of a large body stops and goes on again. How often it
#: does depends on how long turns of the event loop take (`ReadBudget`).
_OF_LONG_TURNS = frozenset(
    f"app/http/connection/{name}"
    for name in (
        "turns.py ReadBudget.wait",
        "turns.py ReadBudget._begin_turn",
        "intake.py Intake.read_on",
        "flow.py Flow.hold_reading",
        "flow.py Flow.pause_reading",
        "flow.py Flow.release_reading",
        "flow.py Flow.resume_reading",
        "backlog.py Backlog.is_full",
        "protocol.py GatewayProtocol.wants_more",
    )
)


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls per request in one process, by "file function"."""

    counts: Counter[str]

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def by_file(self) -> Counter[str]:
        files: Counter[str] = Counter()
        for name, count in self.counts.items():
            files[name.partition(" ")[0]] += count
        return files


@dataclass(frozen=True, slots=True)
class RequestPath:
    """Request path of both processes."""

    gateway: Calls
    device: Calls

    @property
    def total(self) -> int:
        return self.gateway.total + self.device.total

    @property
    def files(self) -> int:
        """Different files."""
        return len(self.gateway.by_file.keys() | self.device.by_file.keys())


def count(scenario: Scenario, folder: Path, most: int = VARIED) -> RequestPath:
    """Serve a scenario's model from `folder` and count the calls of its requests.

    `most`: send only the first so many requests.
    """
    (source,) = write_models(folder, scenario.model).values()
    repository, counts = folder / "models", folder / "counts"
    if compile_models([source], repository).returncode != 0:
        sys.exit("popgate compile failed")
    environment = counting(counts)
    with gateway(repository, devices="cpu:1", environment=environment) as server:
        server.wait_ready()
        requests = [
            whole(scenario.path, request.payload)
            for request in islice(scenario.requests(Mode.VARIED), most)
        ]
        return count_requests(server, requests, counts)


def counting(folder: Path) -> dict[str, str]:
    """Make `folder`; return the variables of a server whose calls are counted there."""
    folder.mkdir()
    hook = "from pathlib import Path\nfrom bench.servers import call_counter\n"
    hook += f"call_counter.install(Path({str(folder)!r}))\n"
    (folder / "sitecustomize.py").write_text(hook)
    return {
        "POPGATE_PURE": "1",
        "POPGATE_SPIN_US": "0",  # spinning makes a varying number of calls
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, folder))),
    }


def count_requests(
    server: Server, requests: Sequence[bytes], folder: Path
) -> RequestPath:
    """Send requests twice, one at a time. Return the calls of the second time.

    The server must have the variables of `counting(folder)`.
    """
    (device,) = server.device_pids()
    for left in (*folder.glob("*.on"), *folder.glob("*.json")):
        left.unlink()
    with socket.create_connection((HOST, server.port)) as connection:
        send(connection, requests)
        for number, suffix in ((signal.SIGUSR1, ".on"), (signal.SIGUSR2, ".json")):
            os.kill(server.pid, number)
            while not (folder / f"{server.pid}{suffix}").exists():
                time.sleep(0.001)
            # A device handles the signal as the next request wakes it, before that.
            os.kill(device, number)
            if number == signal.SIGUSR1:
                send(connection, requests)
        while not (folder / f"{device}.json").exists():
            send(connection, requests[:1])
    pids = server.pid, device
    return RequestPath(*(_read(folder / f"{p}.json", len(requests)) for p in pids))


def _read(file: Path, requests: int) -> Calls:
    """Read the calls per request, without those in fewer than half of the requests."""
    found = json.loads(file.read_text())
    return Calls(
        Counter(
            {
                name: round(n / requests)
                for name, n in found.items()
                if 2 * n >= requests and name not in _OF_LONG_TURNS
            }
        )
    )


def send(connection: socket.socket, requests: Iterable[bytes]) -> None:
    """Send requests, one at a time."""
    for request in requests:
        connection.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += _received(connection)
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            sys.exit(f"not answered: {answer[:400]!r}")
        _, _, length = head.lower().partition(b"content-length: ")
        left = int(length.split(b"\r\n")[0]) - len(body)
        while left > 0:
            left -= len(_received(connection))


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 20)
    if not data:
        sys.exit("the gateway has closed the connection")
    return data


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", choices=SCENARIOS, default="S-json")
    parser.add_argument("--by-file", action="store_true", help="no functions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = count(SCENARIOS[options.scenario], Path(folder))
    for name, calls in (("gateway", found.gateway), ("device", found.device)):
        print(f"{name}: {calls.total} calls in {len(calls.by_file)} files")
        shown = calls.by_file if options.by_file else calls.counts
        for line, times in shown.most_common():
            print(f"  {times:3} {line}")
    print(f"together: {found.total} calls in {found.files} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
