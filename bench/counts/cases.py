"""The requests whose counts are stated, and the server that they go to."""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

from bench import calls
from bench.cases.models import write_models
from bench.cases.payloads import json_request, msgpack_request, npy_request
from bench.cases.scenarios import SCENARIOS, Mode, Scenario
from bench.drivers.load import whole
from bench.servers.processes import asleep
from bench.servers.server import Server, compile_models, gateway

#: By name: all encodings of a small request and of a large one.
CASES: dict[str, Scenario] = {
    f"{size}-{name}": replace(SCENARIOS[base], name=f"{size}-{name}", encode=encode)
    for size, base in (("small", "S-json"), ("large", "L-binary"))
    for name, encode in (
        ("json", json_request),
        ("msgpack", msgpack_request),
        ("binary", SCENARIOS["M-binary"].encode),
        ("npy", npy_request),
    )
}
#: Different requests of a small and of a large case, enough for a median. They are sent
#: twice, and more than 20 runs have followed the last run with a large output then
#: (engine/worker/results.py).
_SMALL, _LARGE = 64, 24
#: Seconds until a server must have started, also on a busy machine.
START = 300


def is_large(case: Scenario) -> bool:
    """Return whether the requests of a case have megabytes."""
    return case.name.startswith("large")


def requests(case: Scenario) -> list[bytes]:
    """Return the requests of a case that are sent, with their heads."""
    varied = islice(case.requests(Mode.VARIED), _LARGE if is_large(case) else _SMALL)
    return [whole(case.path, request.payload) for request in varied]


def variables(*, compiled: bool) -> dict[str, str]:
    """Return the variables of a server that runs as Python or with the compiled path.

    Its device never spins, because spinning makes a varying number of calls.
    """
    never_spin = {"POPGATE_SPIN_US": "0"}
    return never_spin if compiled else {**never_spin, "POPGATE_PURE": "1"}


@cache
def compiled_models() -> dict[str, bytes]:
    """Return the files of the cases' compiled models, by name.

    One command compiles all, because most of its time goes into imports.
    """
    with tempfile.TemporaryDirectory() as folder:
        sources = write_models(Path(folder), *{case.model for case in CASES.values()})
        compiled = Path(folder, "compiled")
        if compile_models([*sources.values()], compiled).returncode != 0:
            sys.exit("popgate compile failed")
        return {name: (compiled / f"{name}.popef").read_bytes() for name in sources}


@contextmanager
def served(
    cases: Collection[Scenario], environment: dict[str, str]
) -> Iterator[Server]:
    """Serve the models of cases on one device."""
    with tempfile.TemporaryDirectory() as folder:
        for name in {case.model for case in cases}:
            Path(folder, f"{name}.popef").write_bytes(compiled_models()[name])
        with gateway(Path(folder), devices="cpu:1", environment=environment) as server:
            server.wait_ready(START)
            yield server


def send_asleep(
    connection: socket.socket, sent: Iterable[bytes], pids: Collection[int]
) -> None:
    """Send requests, each as soon as the processes have fallen asleep.

    On a busy machine a process can find the next request before it sleeps, so it would
    neither wait nor be woken.
    """
    for request in sent:
        end = time.monotonic() + START
        while not all(map(asleep, pids)):
            if time.monotonic() > end:
                sys.exit(f"not all of these processes fall asleep: {pids}")
            time.sleep(0.0002)
        calls.send(connection, [request])
