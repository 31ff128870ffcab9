"""Compare `popgate perf` with wrk, in turns on one server.

    python -m bench.perf                    # 1, 16 and 64 connections, 10 rounds
    python -m bench.perf --rounds 20 --pin

Both keep connections busy with 64 requests in turn that differ in their values. Other
work on the machine can only slow one of them down, so the fastest of all rounds are
compared: requests per second, and the median latency. The server's own statistics stand
beside them: its requests for each one that the client counted, and their mean duration.

Then `popgate perf` keeps an open loop of 2,000 requests a second on one core.

Exit code 1 if a best round differs from wrk's by more than 5 %, the counts of server
and client differ, or a second of the open loop is off by more than 1 %. `--pin` gives
the client the last core and the server all others. On few cores the kernel's choice of
core differs most between two runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.cases.models import write_models
from bench.drivers.load import Prepared, drive
from bench.servers.machine import describe
from bench.servers.server import POPGATE, ROOT, Server, compile_models, gateway
from popgate_client import Client

MODEL, SHAPE = "small", (1, 16)
REQUESTS = 64
RATE, WITHIN = 2000, 0.01
AGREE = 0.05
#: Fewest windows of `popgate perf`; wrk runs as long as all of them.
WINDOWS = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """Result of one run: requests per second, and seconds.

    `counted`: requests of the server's statistics for each request of the client;
    `server`: their mean seconds.
    """

    rate: float
    p50: float
    counted: float
    server: float


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """Run the processes started in the block on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def successes(client: Client) -> tuple[int, int]:
    """Return how many requests the server has answered, and the nanoseconds
    they took.
    """
    (model,) = client.statistics(MODEL)["model_stats"]
    said = model["inference_stats"]["success"]
    return int(said["count"]), int(said["ns"])


def perf(server: Server, *options: str) -> dict[str, Any]:
    """Run the command with one step; return the step."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [*POPGATE, "perf", MODEL, "--url", server.url, "--within", "1000"]
        subprocess.run(
            [*command, "--json", file.name, *options],
            cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        (step,) = json.load(file)["steps"]
        return dict(step)


def by_perf(server: Server, connections: int, seconds: float) -> Seen:
    window = str(seconds / WINDOWS)
    step = perf(server, "-c", str(connections), "--seconds", window, "--warm-up", "0.1")
    shown = step["server"]
    return Seen(
        step["rate"], step["quantiles"]["p50"] / 1e3,
        shown["count"] / step["requests"], shown["request"] / 1e3,
    )  # fmt: skip


def by_wrk(
    server: Server, requests: Prepared, connections: int, seconds: float
) -> Seen:
    with Client(server.url) as client:
        before = successes(client)
        load = drive(server.url, requests, connections, seconds, wrk=True)
        count, ns = (b - a for a, b in zip(before, successes(client), strict=True))
    if load.not_ok or load.broken:
        sys.exit(f"{load.not_ok + load.broken} requests were not ok")
    return Seen(load.rate, load.p50, count / load.requests, ns / count / 1e9)


def compared(connections: int, own: list[Seen], wrk: list[Seen]) -> bool:
    """Print both; return whether they agree."""
    shown, bests = [], []
    for runs in (own, wrk):
        fastest = max(runs, key=lambda run: run.rate)
        rate, p50 = fastest.rate, fastest.p50
        bests.append((rate, p50))
        counted = [run.counted for run in runs]
        server = fastest.server
        shown.append(
            f"{rate:8.0f}/s p50 {p50 * 1e6:6.0f} us, in the server {server * 1e6:6.0f}"
            f" us, counted x{min(counted):.3f} to x{max(counted):.3f}"
        )
    (rate, p50), (wrk_rate, wrk_p50) = bests
    ratios = rate / wrk_rate, p50 / wrk_p50
    print(
        f"{connections:>4}  perf {shown[0]}\n      wrk  {shown[1]}\n"
        f"      ratios of the bests: rate x{ratios[0]:.3f}, p50 x{ratios[1]:.3f}",
        flush=True,
    )
    # The server counts the requests in flight at the end of a run, the client does not.
    same = all(abs(run.counted - 1) < AGREE for run in own)
    return same and all(abs(ratio - 1) <= AGREE for ratio in ratios)


def open_loop(server: Server, seconds: float) -> bool:
    step = perf(server, "-r", str(RATE), "--arrivals", "constant", "--seconds",
                str(seconds))  # fmt: skip
    sent, answered = step["sent_rate"], step["rate"]
    print(
        f"open loop of {RATE}/s: sent {sent:.1f}/s, answered {answered:.1f}/s, "
        f"p50 {step['quantiles']['p50'] * 1e3:.0f} us, {step['late']} waited for a "
        f"connection, client {step['cpu']:.2f} of one core"
    )
    return all(abs(value / RATE - 1) <= WITHIN for value in (sent, answered))


def write_requests(server: Server, file: Path) -> Prepared:
    """Write requests like those of `popgate perf`, with other values."""
    random = np.random.default_rng(0)
    with Client(server.url) as client:
        made = [
            client.prepare(MODEL, {"x": random.standard_normal(SHAPE, np.float32)})
            for _ in range(REQUESTS)
        ]
    file.write_bytes(b"".join(made))
    return Prepared(file, tuple(map(len, made)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a run")
    parser.add_argument("--pin", action="store_true")
    options = parser.parse_args()
    cores = os.sched_getaffinity(0)
    last = {max(cores)}
    rest = cores - last or cores
    print(describe())
    agree = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_models(
            list(write_models(folder / "onnx", MODEL).values()), folder / "models"
        )
        with on_cores(rest if options.pin else cores):
            server = gateway(folder / "models")
        with server:
            server.wait_ready()
            requests = write_requests(server, folder / "requests")
            for connections in options.connections:
                own, wrk = [], []
                with on_cores(last if options.pin else cores):
                    for _ in range(options.rounds):
                        own.append(by_perf(server, connections, options.seconds))
                        wrk.append(
                            by_wrk(server, requests, connections, options.seconds)
                        )
                agree &= compared(connections, own, wrk)
            with on_cores(last):
                agree &= open_loop(server, options.seconds)
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
