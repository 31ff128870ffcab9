"""What recording tracepoints costs.

    python -m bench.monitoring

Two runners of the smallest model on one device, one that records and one that does not,
in turns; each number is the median of all rounds. Recording happens in the thread that
calls, so what it costs is that thread's time on the processor, which depends less on
what else the machine does than what passes on the clock. Exit code 1 where it is more
than one percent of the time a request takes, in either way of calling.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bench.models import small
from engine import DeviceManager, ModelRunner, ModelRunnerConfig
from engine.compiler import compile_model

_ALLOWED = 0.01
_OUTSTANDING = 64


def one_by_one(runner: ModelRunner, count: int) -> None:
    row = {"x": np.ones((1, 16), np.float32)}
    for _ in range(count):
        runner.execute(row)


def many_at_once(runner: ModelRunner, count: int) -> None:
    row = {"x": np.ones((1, 16), np.float32)}
    for _ in range(count // _OUTSTANDING):
        results = [runner.execute_async(row) for _ in range(_OUTSTANDING)]
        results[-1].wait()


def measure(run: Callable[[], None]) -> tuple[float, float]:
    """Seconds that passed, and seconds of the processor that this thread took."""
    wall, cpu = time.perf_counter(), time.thread_time()
    run()
    return time.perf_counter() - wall, time.thread_time() - cpu


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    walls, cpus = zip(*pairs, strict=True)
    return statistics.median(walls), statistics.median(cpus)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--requests", type=int, default=256, help="in a round")
    options = parser.parse_args()
    worst = 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        DeviceManager("cpu:1").get_device() as device,
    ):
        path = Path(folder) / "small.popef"
        compile_model(small(), path)
        runners = [
            ModelRunner(
                path,
                ModelRunnerConfig(
                    replica_to_device={0: device}, record_tracepoints=recording
                ),
            )
            for recording in (False, True)
        ]
        for way in (one_by_one, many_at_once):
            taken: list[list[tuple[float, float]]] = [[], []]
            gc.disable()
            for number in range(options.rounds):
                for which in (0, 1) if number % 2 else (1, 0):
                    run = partial(way, runners[which], options.requests)
                    taken[which].append(measure(run))
            gc.enable()
            wall, cpu = zip(*map(medians, taken), strict=True)
            scale = 1e6 / options.requests
            added = (cpu[1] - cpu[0]) / wall[0]
            worst = max(worst, added)
            print(
                f"{way.__name__:>13}: {wall[0] * scale:6.2f} us a request, recording "
                f"{wall[1] * scale:6.2f} us; this thread's own {cpu[0] * scale:5.2f} "
                f"and {cpu[1] * scale:5.2f} us: {added:+.2%}"
            )
        for runner in runners:
            runner.close()
    return 0 if worst <= _ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
