"""The commands of the simulators: run seeds in several processes, or print one."""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

from bench.fuzzers.clock import use_no_compiled_modules
from bench.fuzzers.event_log import EventLog

#: Seeds that a process runs before it reports.
_AT_ONCE = 50
#: Of some seeds: `counts` and `lived`, and a line about each that failed.
Report = tuple[Counter[str], Counter[Any], list[str]]


def run_seeds(
    text: str | None,
    simulate: Callable[[int], EventLog],
    arguments: Sequence[str] | None = None,
) -> tuple[int, Counter[Any]]:
    """Run the command line of a simulator, and print the seeds that failed.

    `simulate` runs one seed; it is pickled. Returns the exit code, and what all seeds
    have `lived` unless only one is printed.
    """
    parser = argparse.ArgumentParser(description=(text or "").split("\n", 1)[0])
    add = parser.add_argument
    add("count", type=int, nargs="?", default=1000, help="seeds to run")
    add("--first", type=int, default=0, help="the first of them")
    add("--seed", type=int, help="run this one and print its events")
    cores = len(os.sched_getaffinity(0))
    add("--processes", type=int, default=cores, help="that share them (a core each)")
    options = parser.parse_args(arguments)
    use_no_compiled_modules()
    if options.seed is not None:
        world = simulate(options.seed)
        print(world.title, *world.log, *world.faults, sep="\n")
        return int(bool(world.faults)), Counter()
    logging.disable()
    total: Counter[str] = Counter()
    lived: Counter[Any] = Counter()
    failed = 0
    began = time.monotonic()
    end = options.first + options.count
    parts = [
        range(first, min(first + _AT_ONCE, end))
        for first in range(options.first, end, _AT_ONCE)
    ]
    with ProcessPoolExecutor(options.processes, get_context("fork")) as pool:
        for counts, entries, lines in pool.map(partial(_run, simulate), parts):
            total.update(counts)
            lived.update(entries)
            failed += len(lines)
            for line in lines:
                print(line, flush=True)
    seconds = time.monotonic() - began
    rate = options.count / max(seconds, 1e-9)
    print(f"{options.count} seeds in {seconds:.1f} s, {rate:.0f} a second", end=", ")
    print(f"{failed} failed; {total}")
    return int(failed > 0), lived


def _run(simulate: Callable[[int], EventLog], seeds: Sequence[int]) -> Report:
    counts: Counter[str] = Counter()
    lived: Counter[Any] = Counter()
    lines = []
    for seed in seeds:
        world = simulate(seed)
        counts.update(world.counts)
        lived.update(world.lived)
        if world.faults:
            lines.append(f"seed {seed} ({world.title}): {world.faults[0]}")
    return counts, lived, lines
