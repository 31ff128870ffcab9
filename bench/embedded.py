"""Compare a program's own requests with ONNX Runtime in the same process, in one run.

    python -m bench.embedded
    python -m bench.embedded --seconds 0.2 --rounds 3 --sizes 64,4194304
    python -m bench.embedded --out bench/results/NAME.txt

y = x * 2 on float32[n], as many bytes out as in. `ModelRunner` runs it in a device
process, ONNX Runtime in this one, with as many threads as the device has and none of
them spinning; malloc is left as it is. Ways take turns within a round; each number is
the median over the rounds of what a request takes, and of its ratio to ONNX Runtime in
the same round.

    execute(d)      memory of the library's for the result
    execute(d, o)   the caller's
    8 in turn       execute(d) with eight arrays in turn, whose results are kept: of
                    4 MiB they take more memory than the caches have, as x8 does
    x4, x8          so many in flight, then all of them waited for and read
    x8 (d, o)       the same into the caller's memory

`--urgent` gives both processes real-time priority during turns of 0.04 s, with pauses
as long, for a machine that does something else too; it needs the right to do so.

Page faults are those of one request: of this process, and of the device's. Every result
is compared with what it must be, in its first and last elements.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from bench.cases.models import doubled
from bench.servers.machine import describe
from bench.servers.processes import page_faults
from engine import DeviceManager, ModelRunner, ModelRunnerConfig
from engine.programs.onnx_session import session_options
from popgate_onnx.compiler import compile_model

SIZES = (64, 64 << 10, 1 << 20, 4 << 20)
#: Rounds that are not counted, because they touch memory for the first time.
WARM_UP = 1
#: Longest turn with real-time priority in seconds: other processes wait meanwhile.
_BRIEF = 0.04

Floats = npt.NDArray[np.float32]
Way = Callable[[], int]
"""Make a few requests; return how many."""


@dataclass(slots=True)
class Cell:
    """Measurement of one way and size, a number for each round."""

    seconds: list[float] = field(default_factory=list)
    faults: list[float] = field(default_factory=list)
    device_faults: list[float] = field(default_factory=list)


@contextmanager
def ways(size: int) -> Iterator[tuple[dict[str, Way], int]]:
    """Yield the ways to run one model, by name, and the process of its device."""
    model = doubled(size // 4).SerializeToString()
    with (
        tempfile.TemporaryDirectory() as folder,
        DeviceManager("cpu:1").get_device() as device,
    ):
        path = Path(folder) / "doubled.popef"
        compile_model(model, path)
        session = ort.InferenceSession(model, session_options(device.threads))
        config = ModelRunnerConfig(replica_to_device={0: device})
        with ModelRunner(path, config) as runner:
            assert device.pid is not None
            yield _ways(runner, session, size // 4), device.pid


def _ways(runner: ModelRunner, session: ort.InferenceSession, n: int) -> dict[str, Way]:
    data = [{"x": np.full(n, number, np.float32)} for number in range(8)]
    memory = [{"y": np.zeros(n, np.float32)} for _ in range(8)]

    def checked(number: int, result: Mapping[str, Floats]) -> None:
        first, last = result["y"][0], result["y"][-1]
        if not first == last == 2 * number:
            sys.exit(f"wrong: {first} and {last}, expected {2 * number}")

    def onnxruntime() -> int:
        checked(1, {"y": session.run(["y"], data[1])[0]})
        return 1

    def execute() -> int:
        checked(2, runner.execute(data[2]))
        return 1

    def execute_into() -> int:
        checked(3, runner.execute(data[3], memory[3]))
        return 1

    def in_turn() -> int:
        for number, result in enumerate([runner.execute(one) for one in data]):
            checked(number, result)
        return len(data)

    def in_flight(count: int, *, into: bool = False) -> Way:
        def way() -> int:
            results = [
                runner.execute_async(data[i], memory[i] if into else None)
                for i in range(count)
            ]
            for number, result in enumerate(results):
                checked(number, result)
            return count

        return way

    return {
        "onnxruntime": onnxruntime,
        "execute(d)": execute,
        "execute(d, o)": execute_into,
        "8 in turn": in_turn,
        "x4": in_flight(4),
        "x8": in_flight(8),
        "x8 (d, o)": in_flight(8, into=True),
    }


def hurry(pids: Sequence[int], *, urgent: bool) -> None:
    """Give all threads of processes real-time priority, or take it from them."""
    policy = os.SCHED_FIFO if urgent else os.SCHED_OTHER
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(thread), policy, os.sched_param(int(urgent)))


def measure(
    size: int, rounds: int, seconds: float, *, urgent: bool = False
) -> dict[str, Cell]:
    """Measure all ways of one size, in turns."""
    with ways(size) as (all_ways, pid):
        cells = {name: Cell() for name in all_ways}
        for number in range(WARM_UP + rounds):
            order = list(all_ways) if number % 2 else list(all_ways)[::-1]
            for name in order:
                cell = Cell() if number < WARM_UP else cells[name]
                if not urgent:
                    _turn(all_ways[name], cell, seconds, pid)
                    continue
                both = (os.getpid(), pid)
                hurry(both, urgent=True)
                try:
                    _turn(all_ways[name], cell, _BRIEF, pid)
                finally:
                    hurry(both, urgent=False)
                time.sleep(_BRIEF)
            gc.collect()
    return cells


def _turn(way: Way, cell: Cell, seconds: float, pid: int) -> None:
    way()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    device_before = page_faults(pid)
    taken: list[float] = []
    count = 0
    began = time.perf_counter()
    end = began + seconds
    while began < end:
        each = way()
        now = time.perf_counter()
        taken.append((now - began) / each)
        began = now
        count += each
    cell.device_faults.append((page_faults(pid) - device_before) / count)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cell.faults.append((after - before) / count)
    cell.seconds.append(statistics.median(taken))


def table(size: int, cells: Mapping[str, Cell]) -> Iterator[str]:
    """Return the lines of a table for one size."""
    beside = cells["onnxruntime"].seconds
    yield f"{size} bytes"
    for name, cell in cells.items():
        ratio = statistics.median(
            mine / its for mine, its in zip(cell.seconds, beside, strict=True)
        )
        yield (
            f"  {name:<14} {statistics.median(cell.seconds) * 1e6:8.1f} us  "
            f"(least {min(cell.seconds) * 1e6:7.1f})  x{ratio:5.1f}"
            f"   page faults {statistics.median(cell.faults):7.1f}"
            f"   device {statistics.median(cell.device_faults):6.1f}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--seconds", type=float, default=0.3, help="a turn")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--urgent", action="store_true", help="real-time priority")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="in bytes")
    parser.add_argument("--out", type=Path, help="keep what is printed")
    options = parser.parse_args(arguments)
    lines = [f"{describe()}; load {os.getloadavg()[0]:.1f} at the start", ""]
    if options.urgent:
        lines[1:1] = ["in turns with real-time priority"]
    print("\n".join(lines), flush=True)
    gc.freeze()
    for size in map(int, options.sizes.split(",")):
        cells = measure(size, options.rounds, options.seconds, urgent=options.urgent)
        shown = list(table(size, cells))
        print("\n".join(shown), flush=True)
        lines += shown
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
