"""What recording tracepoints costs.

    python -m bench.monitoring

Three runners of the smallest model on one device, of which the second records, in
turns of a few requests. Recording happens in the thread that calls, so what it costs is
that thread's time on the processor, which depends less on what else the machine does
than what passes on the clock. Each number is the median of what a turn took more than
that of the first runner beside it; the third says how far off such a number is.
Exit code 1 where recording takes more than one percent of the time of a request, in
either way of calling.
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


def added(turns: list[tuple[float, float]], first: list[tuple[float, float]]) -> float:
    """The median of how much more processor time turns took than those beside them."""
    pairs = zip(turns, first, strict=True)
    return statistics.median(mine[1] - its[1] for mine, its in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=64, help="in a turn")
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
            for recording in (False, True, False)
        ]
        for way in (one_by_one, many_at_once):
            taken: list[list[tuple[float, float]]] = [[], [], []]
            gc.disable()
            for number in range(options.rounds):
                for turn in range(3):
                    which = (number + turn) % 3
                    run = partial(way, runners[which], options.requests)
                    taken[which].append(measure(run))
            gc.enable()
            wall, cpu = (
                statistics.median(values) / options.requests
                for values in zip(*taken[0], strict=True)
            )
            recording, nothing = (
                added(turns, taken[0]) / options.requests for turns in taken[1:]
            )
            worst = max(worst, recording / wall)
            print(
                f"{way.__name__:>13}: {wall * 1e6:6.2f} us a request, {cpu * 1e6:5.2f} "
                f"of this thread; recording adds {recording * 1e6:+.2f} us "
                f"({recording / wall:+.2%} and {recording / cpu:+.2%}), nothing "
                f"{nothing * 1e6:+.2f} us"
            )
        for runner in runners:
            runner.close()
    return 0 if worst <= _ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
