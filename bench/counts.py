"""Check the counts of one request in each encoding, small and large, against a table.

    python -m bench.counts            # compare with bench/counts.toml
    python -m bench.counts --write    # after a change that is meant

Counts hold on a busy machine, where times do not. Python calls are those of our
functions (`bench.calls`), counted in plain Python. System calls are counted by strace
in the main threads of the gateway and of the device process, plain and, if the hot
path is compiled, compiled; without strace only the calls are compared. A call that
happens in fewer than half of the requests belongs to no request (timers).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from bench import calls
from bench.cases.models import write_models
from bench.cases.payloads import json_request, msgpack_request, npy_request
from bench.cases.scenarios import SCENARIOS, VARIED, Mode, Scenario
from bench.drivers.load import whole
from bench.servers.server import HOST, Server, compile_models, gateway

TABLE = Path(__file__).parent / "counts.toml"
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
#: Times that each request of a large case is sent: few, because it has megabytes.
LARGE = 16
#: The number of system calls depends on which process wakes first. A difference of up
#: to this many calls of one name is no change.
WAITING = {
    "epoll_wait": 1,
    "epoll_pwait": 1,
    "epoll_pwait2": 1,
    "ppoll": 1,
    "poll": 1,
    "pselect6": 1,
}
#: The kernel decides in how many pieces large bodies arrive.
PIECES = {"recvfrom": 6, "read": 6, "sendto": 2, "sendmsg": 2, "writev": 2, "write": 2}

Counts = Mapping[str, int]


def python_calls(case: Scenario) -> dict[str, int]:
    """Count the calls of our functions that one request makes."""
    with tempfile.TemporaryDirectory() as folder:
        found = calls.count(case, Path(folder), _number_of(case))
    return {
        "gateway": found.gateway.total,
        "device": found.device.total,
        "files": found.files,
    }


def system_calls(case: Scenario, *, compiled: bool) -> dict[str, dict[str, int]]:
    """Count the system calls of both main threads, by name."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        (source,) = write_models(Path(folder), case.model).values()
        if compile_models([source], repository).returncode != 0:
            sys.exit("popgate compile failed")
        environment = {"POPGATE_SPIN_US": "0"}
        if not compiled:
            environment["POPGATE_PURE"] = "1"
        with gateway(repository, devices="cpu:1", environment=environment) as server:
            server.wait_ready()
            return _traced(server, case)


def _traced(server: Server, case: Scenario) -> dict[str, dict[str, int]]:
    (device,) = server.device_pids()
    requests = list(_requests(case))
    found = {}
    with socket.create_connection((HOST, server.port)) as connection:
        calls.send(connection, requests)
        for process, pid in (("gateway", server.pid), ("device", device)):
            command = ["strace", "-c", "-U", "calls,name", "-p", str(pid)]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
                assert strace.stderr is not None
                if "attached" not in (line := strace.stderr.readline()):
                    sys.exit(f"strace: {line.strip()}")
                calls.send(connection, requests)
                strace.send_signal(signal.SIGINT)
                found[process] = _summary(strace.stderr.read(), len(requests))
    return found


def _requests(case: Scenario) -> Iterator[bytes]:
    for request in islice(case.requests(Mode.VARIED), _number_of(case)):
        yield whole(case.path, request.payload)


def _number_of(case: Scenario) -> int:
    return LARGE if case.name.startswith("large") else VARIED


def _summary(text: str, requests: int) -> dict[str, int]:
    lines = re.findall(r"^\s*(\d+) ([a-z_0-9]+)$", text, re.MULTILINE)
    counts = Counter({name: int(n) for n, name in lines if name != "total"})
    return {
        name: round(n / requests)
        for name, n in sorted(counts.items())
        if n >= requests / 2
    }


def measured(*, traced: bool, compiled: bool) -> dict[str, dict[str, object]]:
    """Count every case; with progress on stderr."""
    table: dict[str, dict[str, object]] = {}
    for name, case in CASES.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        row: dict[str, object] = {"calls": python_calls(case)}
        if traced:
            row["plain"] = system_calls(case, compiled=False)
            if compiled:
                row["compiled"] = system_calls(case, compiled=True)
        table[name] = row
    return table


def differences(stated: object, found: object, where: str = "") -> Iterator[str]:
    """Yield each count that differs from the stated one, with both values."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for name in sorted(stated.keys() | found.keys()):
            absent = 0 if where else None
            both = stated.get(name, absent), found.get(name, absent)
            if None not in both:
                yield from differences(*both, f"{where} {name}".strip())
    elif stated != found and not _is_pause(where, stated, found):
        yield f"{where}: {found}, stated {stated}"


def _is_pause(where: str, stated: object, found: object) -> bool:
    """Return whether waiting, or the pieces of a body, explain the difference."""
    name = where.rpartition(" ")[2]
    allowed = WAITING.get(name, 0)
    if where.startswith("large"):
        # The functions that read a body are called for each of its pieces.
        allowed += PIECES.get(name, 20 if " calls " in where else 0)
    elif " calls " in where:
        allowed = 2  # a device finds the next request before it sleeps, or after
    return (
        isinstance(stated, int)
        and isinstance(found, int)
        and abs(stated - found) <= allowed
    )


def to_toml(table: Mapping[str, Mapping[str, object]]) -> str:
    """Write the table: one line for each process."""
    lines = ["# Written by `python -m bench.counts --write`; for one request each.", ""]
    for case, row in table.items():
        lines.append(f"[{case}]")
        for kind, counts in row.items():
            assert isinstance(counts, dict)
            for process, value in counts.items():
                lines.append(f"{kind}.{process} = {_value(value)}")
        lines.append("")
    return "\n".join(lines)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {n}' for name, n in value.items())} }}"
    return json.dumps(value)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write bench/counts.toml")
    parser.add_argument("--compiled", action="store_true", help="compiled code, too")
    options = parser.parse_args()
    traced = shutil.which("strace") is not None
    found = measured(traced=traced, compiled=options.compiled)
    if options.write:
        TABLE.write_text(to_toml(found))
        return 0
    stated = tomllib.loads(TABLE.read_text())
    wrong = [
        line
        for case, row in found.items()
        for kind in row
        for line in differences(stated[case].get(kind, {}), row[kind], f"{case} {kind}")
    ]
    print("\n".join(wrong) or f"as stated: {len(found)} cases")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
