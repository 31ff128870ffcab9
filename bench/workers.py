"""Compare `popgate serve --workers N` with one process: S as JSON, 64 connections.

    python -m bench.workers                     # 2 workers, 10 rounds of 2 s
    python -m bench.workers --workers 4 --rounds 5

Both gateways are up all the time. It shows requests per second and processor time per
request of each (median, least, most), and the ratios in each round and of the fastest
rounds. The client (wrk, if installed) and the device process share the cores. On two
cores, other work on the machine takes the share of a second worker, so the fastest
rounds say most.

Exit code 1 if their ratio is below the required one for two workers on two cores, or a
request failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.cases.models import write_models
from bench.cases.scenarios import SCENARIOS, Mode
from bench.drivers.load import Prepared, drive, has_wrk, prepared
from bench.servers.machine import describe
from bench.servers.server import Server, compile_models, gateway

REQUIRED = 1.2
CONNECTIONS = 64


def measure(server: Server, requests: Prepared, seconds: float) -> tuple[float, float]:
    """Return requests per second, and microseconds of the server's processor time for
    each.
    """
    before = server.cpu()
    load = drive(server.url, requests, CONNECTIONS, seconds, wrk=has_wrk())
    if load.not_ok or load.broken:
        sys.exit(f"{load.not_ok + load.broken} requests were not ok")
    return load.rate, (server.cpu() - before) / load.requests * 1e6


def shown(values: list[float], digits: int) -> str:
    least, most = min(values), max(values)
    return f"{median(values):.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    print(describe(), f"load {os.getloadavg()[0]:.1f}")
    scenario = SCENARIOS["S-json"]
    payloads = [request.payload for request in scenario.requests(Mode.VARIED)]
    with tempfile.TemporaryDirectory() as folder:
        paths = write_models(Path(folder, "onnx"), scenario.model)
        compile_models(list(paths.values()), Path(folder, "models"))
        root = Path(folder, "models")
        count = str(options.workers)
        pool = {"POPGATE_POOL": f"bench-several-{os.getpid()}"}
        with (
            gateway(root, devices="cpu:1", name="one") as one,
            gateway(
                root, "--workers", count, devices="cpu:1", environment=pool
            ) as several,
            prepared(scenario.path, payloads) as requests,
        ):
            for server in (one, several):
                server.wait_ready()
                measure(server, requests, 1.0)
            rounds = [
                (
                    measure(one, requests, options.seconds),
                    measure(several, requests, options.seconds),
                )
                for _ in range(options.rounds)
            ]
    bests = []
    for number, name in enumerate(("one", f"{count} workers")):
        rates = [both[number][0] for both in rounds]
        costs = [both[number][1] for both in rounds]
        bests.append(max(rates))
        print(
            f"{name:>10}: {shown(rates, 0)} requests a second, "
            f"{shown(costs, 1)} us of processor time each"
        )
    ratios = [several / one for (one, _), (several, _) in rounds]
    best = bests[1] / bests[0]
    print(
        f"ratio of requests a second: {shown(ratios, 2)} in a round, {best:.2f} of the "
        f"fastest rounds, required {REQUIRED}"
    )
    return int(best < REQUIRED)


if __name__ == "__main__":
    sys.exit(main())
