"""Measure the cost of recording tracepoints.

    python -m bench.monitoring

One runner of the smallest model makes turns of a few requests. It records in one of
three neighbouring turns, in random order. One runner serves for all turns, because the
places in memory of two runners differ by more than recording costs. The calling thread
records, so the cost is that thread's processor time, which depends less on other work
than the clock does. Each number is the median of what a turn took more than its
neighbours, with the 95 % interval of that median. The control is the difference between
the turns without recording. Exit code 1 if recording takes more than one percent of the
time of a request, in either way of calling.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import engine.runner.replica_channel
from bench.cases.models import small
from engine import DeviceManager, ModelRunner, ModelRunnerConfig
from popgate_onnx.compiler import compile_model

_ALLOWED = 0.01
_OUTSTANDING = 64
#: Rounds between two collections of garbage, which happen between turns.
_COLLECT = 100


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
    """Return the passed seconds, and this thread's seconds of processor time."""
    wall, cpu = time.perf_counter(), time.thread_time()
    run()
    return time.perf_counter() - wall, time.thread_time() - cpu


def median(values: list[float]) -> tuple[float, float, float]:
    """Return the median, and its 95 % interval from order statistics."""
    values = sorted(values)
    middle, spread = len(values) / 2, 0.98 * math.sqrt(len(values))
    low = max(0, math.floor(middle - spread))
    high = min(len(values) - 1, math.ceil(middle + spread))
    return statistics.median(values), values[low], values[high]


def compare(
    way: Callable[[ModelRunner, int], None],
    runner: ModelRunner,
    rounds: int,
    requests: int,
) -> float:
    """Print the time of a way of calling; return the share that recording adds."""
    clock = runner._clock  # None: a request does not record
    taken: list[list[tuple[float, float]]] = [[], [], []]
    order = [0, 1, 2]
    way(runner, 64 * requests)
    gc.disable()
    for number in range(rounds):
        random.shuffle(order)
        for which in order:
            runner._clock = clock if which == 2 else None
            taken[which].append(measure(lambda: way(runner, requests)))
        if number % _COLLECT == 0:
            gc.collect()
    gc.enable()
    runner._clock = clock
    wall = statistics.median(t[0] for t in taken[0] + taken[1]) / requests
    cpu = statistics.median(t[1] for t in taken[0] + taken[1]) / requests
    turns = [[t[1] / requests * 1e6 for t in these] for these in taken]
    added, low, high = median([c - (a + b) / 2 for a, b, c in zip(*turns, strict=True)])
    nothing, least, most = median([b - a for a, b, _ in zip(*turns, strict=True)])
    print(
        f"{way.__name__:>13}: {wall * 1e6:6.2f} us a request, {cpu * 1e6:5.2f} of this "
        f"thread; recording adds {added:+.3f} us ({low:+.3f} to {high:+.3f}), "
        f"{added / wall / 1e6:+.2%} and {added / cpu / 1e6:+.2%}; control "
        f"{nothing:+.3f} us ({least:+.3f} to {most:+.3f})",
        flush=True,
    )
    return added / wall / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--requests", type=int, default=64, help="in a turn")
    options = parser.parse_args()
    compiled = engine.runner.replica_channel.__file__.endswith(".so")
    print("compiled" if compiled else "plain Python", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        DeviceManager("cpu:1").get_device() as device,
    ):
        path = Path(folder) / "small.popef"
        compile_model(small(), path)
        config = ModelRunnerConfig(
            replica_to_device={0: device}, record_tracepoints=True
        )
        with ModelRunner(path, config) as runner:
            worst = max(
                compare(way, runner, options.rounds, options.requests)
                for way in (one_by_one, many_at_once)
            )
    return 0 if worst <= _ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
