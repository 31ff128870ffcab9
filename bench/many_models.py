"""1, 100 and 500 copies of a small model in one gateway: what each one costs.

    python -m bench.many_models
    python -m bench.many_models --counts 1,50 --seconds 1 --rounds 1

Start-up time, memory, threads, descriptors and idle CPU of gateway and device
process together, and requests per second on one of the models. The counts are
measured in turns, `rounds` times. Exit code 1 where the throughput on one model falls
by more than 10 % against the smallest count.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.load import drive, has_wrk
from bench.machine import describe
from bench.models import write_models
from bench.processes import Usage
from bench.scenarios import SCENARIOS
from bench.serving import compile_models, gateway

#: How far the throughput on one model may fall when others are loaded beside it.
MAY_FALL = 0.10
CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """One gateway with `models` models. Times in seconds, `idle_cpu` in cores."""

    models: int
    ready: float
    usage: Usage
    idle_cpu: float
    rate: float
    failed: int


def fill(folder: Path, model: Path, count: int) -> Path:
    """A repository folder with `count` copies of one compiled model."""
    repository = folder / f"of-{count}"
    repository.mkdir()
    for number in range(count):
        shutil.copy(model, repository / f"m{number:04}.popef")
    return repository


def read(repository: Path, count: int, options: argparse.Namespace) -> Reading:
    """Start a gateway on the folder, read it idle, then drive the middle model."""
    scenario = SCENARIOS["S-json"]
    payload = scenario.encode(scenario.inputs())
    with gateway(repository, devices=options.devices) as server:
        ready = server.wait_ready(300)
        path = f"{server.url}/v2/models/m{count // 2:04}/infer"
        # One second of load first: what is made at first use is there when idle.
        drive(path, payload, CONNECTIONS, 1, wrk=options.wrk)
        time.sleep(0.5)
        before, started = server.cpu(), time.monotonic()
        time.sleep(options.idle)
        idle_cpu = (server.cpu() - before) / (time.monotonic() - started)
        usage = server.usage()
        load = drive(path, payload, CONNECTIONS, options.seconds, wrk=options.wrk)
    failed = load.not_ok + load.broken
    return Reading(count, ready, usage, idle_cpu, load.rate, failed)


def run(options: argparse.Namespace) -> list[Reading]:
    readings = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = write_models(folder / "onnx", "small")["small"]
        done = compile_models([source], folder / "compiled")
        assert done.returncode == 0, done.stdout + done.stderr
        model = folder / "compiled" / "small.popef"
        repositories = {count: fill(folder, model, count) for count in options.counts}
        print(
            f"{'models':>6} {'ready s':>8} {'RSS MiB':>8} {'PSS MiB':>8}"
            f" {'threads':>7} {'fds':>5} {'idle CPU':>8} {'requests/s':>10}"
        )
        for number in range(options.rounds):
            turn = options.counts if number % 2 == 0 else options.counts[::-1]
            for count in turn:
                reading = read(repositories[count], count, options)
                readings.append(reading)
                use = reading.usage
                print(
                    f"{count:>6} {reading.ready:8.2f} {use.rss / 2**20:8.1f}"
                    f" {use.pss / 2**20:8.1f} {use.threads:>7} {use.descriptors:>5}"
                    f" {reading.idle_cpu:8.4f} {reading.rate:10.0f}",
                    flush=True,
                )
    return readings


def judge(readings: list[Reading], counts: list[int]) -> int:
    """Costs per added model, and whether the throughput held. The exit code."""

    def median(count: int, what: str) -> float:
        ours = [each for each in readings if each.models == count]
        values = {
            "ready": [each.ready for each in ours],
            "pss": [float(each.usage.pss) for each in ours],
            "threads": [float(each.usage.threads) for each in ours],
            "descriptors": [float(each.usage.descriptors) for each in ours],
            "idle": [each.idle_cpu for each in ours],
            "rate": [each.rate for each in ours],
        }
        return statistics.median(values[what])

    code = int(any(each.failed for each in readings))
    first = min(counts)
    for count in sorted(set(counts) - {first}):
        added = count - first

        def each_adds(what: str, count: int = count, added: int = added) -> float:
            return (median(count, what) - median(first, what)) / added

        ratio = median(count, "rate") / median(first, "rate")
        held = ratio >= 1 - MAY_FALL
        code |= not held
        print(
            f"{count} models: each adds {each_adds('ready') * 1e3:.1f} ms to the start,"
            f" {each_adds('pss') / 1024:.0f} KiB, {each_adds('threads'):.3f} threads,"
            f" {each_adds('descriptors'):.2f} descriptors,"
            f" {each_adds('idle') * 1e6:.1f} us CPU a second;"
            f" throughput x{ratio:.2f} {'pass' if held else 'FAIL'}"
        )
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--counts",
        type=lambda text: [int(each) for each in text.split(",")],
        default=[1, 100, 500],
    )
    parser.add_argument("--seconds", type=float, default=5, help="of load each time")
    parser.add_argument("--idle", type=float, default=5, help="seconds of idleness")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--devices", help="passed on to popgate serve")
    parser.add_argument("--out", type=Path, help="write all readings here as JSON")
    options = parser.parse_args()
    options.wrk = has_wrk()
    machine = describe()
    print(machine)
    readings = run(options)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": machine.as_dict(),
            "readings": [asdict(each) for each in readings],
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return judge(readings, options.counts)


if __name__ == "__main__":
    sys.exit(main())
