"""Measure what each model costs: gateways with 1, 100 and 500 copies of a small model.

    python -m bench.many_models
    python -m bench.many_models --counts 1,50 --rounds 2 --idle 1
    python -m bench.many_models --counts 1,1,500 --rounds 30    # 1 beside 1: the noise

One gateway for each count; all of them run at once, one after the other is started.
Start-up time, memory, threads, descriptors and idle CPU of gateway and device process
together. Then requests per second on one of the models, in turns: 1, 100, 500, 500,
100, 1 and so on. The speed of a machine changes from minute to minute, so a gateway is
compared with the first one only within a round. It prints the medians of these ratios
and their 95 % intervals. Exit code 1 if the throughput on one model falls by more than
10 % against the first count, and the noise does not explain it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.cases.models import write_models
from bench.cases.payloads import Payload
from bench.cases.scenarios import SCENARIOS
from bench.drivers.load import drive, has_wrk, prepared
from bench.servers.machine import describe
from bench.servers.processes import Usage, cpu_seconds
from bench.servers.server import Server, compile_models, gateway

#: Largest allowed loss of throughput on one model when others are loaded too.
MAY_FALL = 0.10
CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement of one gateway: requests per second, answers other than 200, and
    microseconds of processor time of gateway and device per request.
    """

    rate: float
    failed: int
    gateway_us: float
    device_us: float

    @property
    def cpu_us(self) -> float:
        return self.gateway_us + self.device_us


@dataclass(frozen=True, slots=True)
class Reading:
    """A gateway with `models` models. `ready` in seconds, `idle_cpu` in cores; `turns`
    has one item a round."""

    models: int
    ready: float
    usage: Usage
    idle_cpu: float
    turns: tuple[Turn, ...]

    @property
    def rate(self) -> float:
        return statistics.median(turn.rate for turn in self.turns)

    @property
    def cpu_us(self) -> float:
        return statistics.median(turn.cpu_us for turn in self.turns)


def fill(folder: Path, model: Path, count: int) -> Path:
    """Return a repository folder with `count` copies of one compiled model."""
    repository = folder / f"of-{count}"
    repository.mkdir(exist_ok=True)
    for number in range(count):
        shutil.copy(model, repository / f"m{number:04}.popef")
    return repository


def turn(
    server: Server, count: int, payload: Payload, options: argparse.Namespace
) -> Turn:
    """Send load to the model in the middle of the list."""
    gateway, *devices = server.pids()
    with prepared(f"/v2/models/m{count // 2:04}/infer", [payload]) as requests:
        before = cpu_seconds([gateway]), cpu_seconds(devices)
        load = drive(
            server.url, requests, CONNECTIONS, options.seconds, wrk=options.wrk
        )
    each = 1e6 / max(1, load.requests)
    return Turn(
        load.rate,
        load.not_ok + load.broken,
        (cpu_seconds([gateway]) - before[0]) * each,
        (cpu_seconds(devices) - before[1]) * each,
    )


def idle_cpu(servers: list[Server], seconds: float) -> list[float]:
    """Return the cores that each gateway uses without requests."""
    time.sleep(0.5)
    before, started = [server.cpu() for server in servers], time.monotonic()
    time.sleep(seconds)
    after, took = [server.cpu() for server in servers], time.monotonic() - started
    return [(b - a) / took for a, b in zip(before, after, strict=True)]


def serve(
    stack: ExitStack, options: argparse.Namespace
) -> tuple[list[Server], list[float]]:
    """Return the gateways, and how many seconds each of them took until it
    was ready.
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    source = write_models(folder / "onnx", "small")["small"]
    done = compile_models([source], folder / "compiled")
    if done.returncode != 0:
        sys.exit(f"popgate compile failed:\n{done.stdout}{done.stderr}")
    model = folder / "compiled" / "small.popef"
    servers, ready = [], []
    for number, count in enumerate(options.counts):
        repository = fill(folder, model, count)
        pool = {"POPGATE_POOL": f"bench-{os.getpid()}-{number}"}
        server = gateway(
            repository,
            devices=options.devices,
            environment=pool,
            name=f"gateway-{number}-of-{count}",
        )
        servers.append(stack.enter_context(server))
        ready.append(server.wait_ready(300))
        print(f"{count} models: ready after {ready[-1]:.2f} s", flush=True)
    return servers, ready


def run(options: argparse.Namespace) -> list[Reading]:
    scenario = SCENARIOS["S-json"]
    payload = scenario.encode(scenario.inputs())
    numbers = range(len(options.counts))
    turns: list[list[Turn]] = [[] for _ in numbers]
    with ExitStack() as stack:
        servers, ready = serve(stack, options)
        # Load the model first, so that everything made at first use exists when idle.
        for server, count in zip(servers, options.counts, strict=True):
            turn(server, count, payload, options)
        idle = idle_cpu(servers, options.idle)
        usages = [server.usage() for server in servers]
        print("requests/s, CPU us a request (gateway + device):")
        for round_number in range(options.rounds):
            for number in numbers if round_number % 2 == 0 else reversed(numbers):
                count = options.counts[number]
                turns[number].append(turn(servers[number], count, payload, options))
            last = [each[-1] for each in turns]
            cells = (
                f"{t.rate:7.0f} {t.gateway_us:5.1f} + {t.device_us:4.1f}" for t in last
            )
            print(f"{round_number + 1:>4} | {' | '.join(cells)}", flush=True)
    return [
        Reading(count, ready[n], usages[n], idle[n], tuple(turns[n]))
        for n, count in enumerate(options.counts)
    ]


def table(readings: list[Reading]) -> str:
    """Return one line for each gateway, with medians over the rounds."""
    head = (
        f"{'models':>6} {'ready s':>8} {'RSS MiB':>8} {'PSS MiB':>8} {'threads':>7}"
        f" {'fds':>5} {'idle CPU':>8} {'requests/s':>10} {'CPU us':>6}"
    )
    lines = [head]
    for each in readings:
        use = each.usage
        lines.append(
            f"{each.models:>6} {each.ready:8.2f} {use.rss / 2**20:8.1f}"
            f" {use.pss / 2**20:8.1f} {use.threads:>7} {use.descriptors:>5}"
            f" {each.idle_cpu:8.4f} {each.rate:10.0f} {each.cpu_us:6.1f}"
        )
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median of ratios, and its 95 % interval."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: list[float]) -> Ratio:
        """Make the ratio without assuming a distribution (order statistics)."""
        ranked = sorted(ratios)
        count = len(ranked)
        at = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)))
        return cls(statistics.median(ranked), ranked[at], ranked[count - 1 - at])

    def verdict(self, least: float) -> str:
        """Return FAIL only if the noise of the machine does not explain the ratio."""
        if self.middle >= least:
            return "pass"
        if self.high < least:
            return "FAIL"
        return "not clear, the machine is too busy: --rounds"

    def __str__(self) -> str:
        return f"x{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"


def judge(readings: list[Reading]) -> int:
    """Print costs per added model, and whether the throughput held; return the exit
    code.
    """
    first = readings[0]
    code = 0
    if any(not turn.rate or turn.failed for each in readings for turn in each.turns):
        print("FAIL: there were answers other than 200, or none")
        return 1
    for each in readings[1:]:
        pairs = list(zip(each.turns, first.turns, strict=True))
        rate = Ratio.of([mine.rate / base.rate for mine, base in pairs])
        cost = Ratio.of([mine.cpu_us / base.cpu_us for mine, base in pairs])
        verdict = rate.verdict(1 - MAY_FALL)
        code |= verdict == "FAIL"
        print(
            f"{each.models} models: {added(each, first)}throughput {rate} {verdict},"
            f" CPU a request {cost}"
        )
    return code


def added(each: Reading, first: Reading) -> str:
    """Return the cost of each model that one gateway has and the other has not."""
    more = each.models - first.models
    if more <= 0:
        return ""
    mine, base = each.usage, first.usage
    return (
        f"each adds {(each.ready - first.ready) / more * 1e3:.1f} ms to the start,"
        f" {(mine.pss - base.pss) / more / 1024:.0f} KiB,"
        f" {(mine.threads - base.threads) / more:.3f} threads,"
        f" {(mine.descriptors - base.descriptors) / more:.2f} descriptors,"
        f" {(each.idle_cpu - first.idle_cpu) / more * 1e6:.1f} us CPU a second; "
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--counts",
        type=lambda text: [int(each) for each in text.split(",")],
        default=[1, 100, 500],
    )
    parser.add_argument("--seconds", type=float, default=1, help="of load each time")
    parser.add_argument("--idle", type=float, default=10, help="seconds of idleness")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--devices", help="passed on to popgate serve")
    parser.add_argument("--out", type=Path, help="write all readings here as JSON")
    options = parser.parse_args()
    options.wrk = has_wrk()
    machine = describe()
    print(machine)
    readings = run(options)
    print(table(readings))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": machine.as_dict(),
            "readings": [asdict(each) for each in readings],
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return judge(readings)


if __name__ == "__main__":
    sys.exit(main())
